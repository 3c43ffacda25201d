"""Legs that hear one another: what each of them hears in the next 20 ms, and when it leaves. This room knows legs by
their formats and payloads. It knows no call, no dialogue and no reason why legs are joined."""
