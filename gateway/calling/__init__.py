"""The policy for transfers and placed calls: allowed targets, caller ids and rates, for every transport. This room
knows neither carriers nor SIP messages."""
