"""The networks of CosyVoice2 and Fun-CosyVoice3. They own weights and fixed tables, and no state.

Each file has one network. The names of parameters are those of the published checkpoints, which
``tts_engine.cosyvoice.weights.load`` reads. The state of a call lives in caches, which the caller allocates by slot and
block and passes in:

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

What a scheduler has to know:

Rows are independent.
    Any mix of calls may share a batch. Padding on the right and rows of padding (slot 0, block 0, length 0) change
    nothing.
Shapes depend only on the shapes of the arguments.
    Tensors say where a cache is written, and nothing is read back to the host. So every call can be captured in a CUDA
    graph for its number of rows, frames and blocks. ``render`` is the exception.
Slots and blocks are numbers.
    The caller decides who owns which; 0 is scratch in every cache. ``reset`` a slot before a sequence. A block is
    never rewritten once its chunk is full, so many calls may list it. A voice's prompt is computed once into blocks
    and a slot; each call lists these blocks first and begins with ``FlowCache.copy``. The last chunk of a prompt looks
    three tokens into the text behind it: share all chunks but that one, or compute it with zeros for look-ahead, which
    deviates from upstream.
Chunks.
    ``advance`` takes whole chunks of 25 tokens, counted from the start of the prompt, and three tokens of look-ahead;
    ``valid`` says how many of them are real. Only the end of an utterance may lie inside a chunk. Such a last chunk
    continues the chunks before it. Upstream computes the last chunk by full attention over everything instead: use
    ``whole`` (or ``render`` with ``streaming=False, final=True``) and take its new frames. ``render`` with
    ``streaming=True, final=False`` recomputes everything and gives the same numbers as ``advance``.
Steps.
    ``step`` takes an Euler step for each row, so calls may join between steps. The estimator has two rows a call, all
    conditioned ones first; ``FlowCache.estimator_span`` finds the pages of a call, step and branch. At step 0 the
    unconditioned row sees only noise and is the same in every call.
Vocoding.
    ``valid`` says which samples of a row are to be heard. ``CausalHift`` is four frames and eight samples behind its
    input, ``Hift`` 160 ms.
Precision.
    Time tables, noise and Euler state are fp32 whatever the weights are; caches have a dtype of their own. On CUDA,
    cuDNN convolutions use TF32 unless ``torch.backends.cudnn.allow_tf32`` is off. ``drop_time_weights`` of the
    estimator frees the weights that the time table replaced.
Language model.
    ``slots=None`` means that row i is slot i. Decoding uses this form, because it reads the cache without a copy.
    ``keys`` is the number of positions that are attended over. ``copy_prefix`` shares a voice's sos and prompt text.
    Sampling and streamed text are in ``tts_engine.cosyvoice.lm``, the filter on the way to the flow is in
    ``tts_engine.cosyvoice.silent_tokens``.
"""
