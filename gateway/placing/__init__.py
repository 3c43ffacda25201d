"""Calls that the gateway places, and their progress. This room orders calls at carriers by REST; it knows neither SIP
nor media."""
