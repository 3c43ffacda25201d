"""SIP and SDP as bytes and as values, and the parsers between the two. Pure: no transactions, sockets or clock."""
