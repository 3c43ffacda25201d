"""The networks of CosyVoice2 and Fun-CosyVoice3. They own weights and fixed tables, and no state.

One network a file; names of parameters are those of the published checkpoints.
``tts_engine.cosyvoice.weights.load`` makes them. What a call leaves behind lives in caches that the caller allocates by
slot and block, and passes in:

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

For whoever schedules:

Rows are independent.
    Any mix of calls may share a batch; padding on the right and rows of padding (slot 0, block 0, length 0) change
    nothing.
Shapes depend on argument shapes only.
    Caches are written in place at places that tensors name, and nothing is read back, so that every call can be
    captured in a CUDA graph per number of rows, frames and blocks. ``render`` is the exception.
Slots and blocks are numbers.
    Who owns which is decided outside; 0 is scratch in every cache. ``reset`` a slot before a sequence. A block is
    never rewritten once its chunk is full, so many calls may list it: a voice's prompt is computed once into blocks
    and a slot, each call lists these blocks first and begins with ``FlowCache.copy``. The last chunk of a prompt looks
    three tokens into what follows it: share all but that one, or freeze it with zeros for look-ahead (a deviation).
Chunks.
    ``advance`` takes whole chunks of 25 tokens from the start of the prompt, and three tokens of look-ahead; ``valid``
    says how many of them are real. Only the end of an utterance may lie inside a chunk; ended so, it continues the
    chunks before it. Upstream makes the last chunk by full attention over everything instead: ``whole`` (or
    ``render`` with ``streaming=False, final=True``), and of that the new frames. Recomputing instead of caching,
    ``render`` with ``streaming=True, final=False``, gives the same numbers as ``advance``.
Steps.
    ``step`` takes the Euler step by row, so that calls may join between steps. The estimator has two rows a call, all
    conditioned ones first; ``FlowCache.estimator_span`` finds the pages of call, step and branch. At step 0 the
    unconditioned row sees noise alone and is the same in every call.
Vocoding.
    ``valid`` says which samples of a row are to be heard. ``CausalHift`` runs four frames and eight samples behind,
    ``Hift`` holds back 160 ms.
Precision.
    Time tables, noise and Euler state are fp32 whatever the weights are; caches take a dtype of their own. On CUDA,
    cuDNN convolutions use TF32 unless ``torch.backends.cudnn.allow_tf32`` is off. ``drop_time_weights`` of the
    estimator frees what the table of time replaced.
Language model.
    ``slots=None`` means that row i is slot i, and reads the cache without a copy: the form for decoding. ``keys``
    bounds what is attended over. ``copy_prefix`` shares a voice's sos and prompt text. Beside it: ``sampling.ras``
    with ``sampling.stop_mask`` below the minimum length, ``bistream.Bistream`` for streamed text, and
    ``silence.SilenceFilter`` on the way to the flow.
"""
