"""The wire format of the speech engine, and the Python made from it.

Made with the oldest tools that ``pyproject.toml`` allows, since generated code refuses older libraries than its own::

    pip install grpcio-tools==1.80.0
    python -m grpc_tools.protoc -I . --python_out=. --grpc_python_out=. \
        tts_engine/proto/talkspurt/v1/speech_engine.proto
"""
