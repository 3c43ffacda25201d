"""Telnyx media streaming, led by TeXML or by Call Control."""
