"""The speech engine: text in, frames for the line out. Knows no call and no carrier."""
