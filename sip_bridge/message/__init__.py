"""SIP and SDP as bytes and as values, with the parsers between them. Pure: no transaction, no socket, no clock."""
