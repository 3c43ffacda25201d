"""The networks of CosyVoice2 and Fun-CosyVoice3. They own weights and fixed tables, but no state.

Each file has one network, with the parameter names of the published checkpoints (``weights.load`` reads them). The
state of a sequence is in caches, whose slots and blocks the caller allocates and passes in:

===================  ======================================  =======================================================
network              state                                   one call
===================  ======================================  =======================================================
SpeechLanguageModel  llm.KeyValueCache: a slot a sequence    ``lm(x, start, cache, slots=, keys=)``: prefill (n > 1,
                                                             padded on the right) and decode (n = 1) alike
FlowV2, FlowV3       flow.FlowCache: a slot and a list of    ``advance``: whole chunks; or ``condition``,
                     blocks a call                           ``start_state``, then ``step`` ten times
                     none                                    ``render``: whole sequences in one pass
Hift (v2)            hift.SpliceCache: a slot                ``hift(mel, length, slots, cache, final)``
CausalHift (v3)      hift_causal.VocoderCache: a slot        the same
===================  ======================================  =======================================================

Rules for callers:

Rows are independent.
    Any sequences may share a batch. Padding on the right and rows of padding (slot 0, block 0, length 0) do not change
    the other results.
Shapes depend only on the shapes of the arguments.
    Tensors say where caches are written, and nothing is read back to the host, so every call except ``render`` can be
    captured in a CUDA graph for its number of rows, frames and blocks.
Slots and blocks are numbers.
    The caller assigns them; 0 is scratch in every cache. ``reset`` a slot before a sequence. A block is never rewritten
    once its chunk is complete, so sequences may share it. A voice's prompt is computed once into blocks and a slot;
    each sequence lists these blocks first and starts with ``FlowCache.copy``. The last chunk of a prompt depends on
    three tokens after the prompt, so share all chunks but that one.
Chunks.
    ``advance`` takes whole chunks of 25 tokens, counted from the start of the prompt, and three tokens of look-ahead;
    ``valid`` says how many of these tokens are real. Only the last chunk of an utterance may be incomplete. Upstream
    computes that chunk with full attention over the whole utterance: use ``whole`` (or ``render`` with
    ``streaming=False, final=True``) and take its new frames. ``render`` with ``streaming=True, final=False`` recomputes
    everything and gives the same numbers as ``advance``.
Steps.
    ``step`` takes one Euler step for each row; rows may be at different steps. The estimator has two rows per sequence,
    all conditioned ones first; ``FlowCache.estimator_span`` finds their pages for each step.
Vocoding.
    ``valid`` says which samples of a row can be played. The output lags the input by four frames and eight samples
    (``CausalHift``) or 160 ms (``Hift``).
Precision.
    Time tables, noise and Euler state are always fp32; caches have their own dtype. On CUDA, cuDNN convolutions use
    TF32 unless ``torch.backends.cudnn.allow_tf32`` is off. ``drop_time_weights`` of the estimator frees the weights
    that the time table replaced.
Language model.
    ``slots=None`` means that row i is slot i, which reads the cache without a copy. ``keys`` is the number of positions
    to attend over. ``copy_prefix`` copies a voice's sos and prompt text. Sampling and streamed text are in
    ``tts_engine.cosyvoice.lm``, the filter before the flow is in ``silent_tokens``.
"""
