"""Flow control: slots, credits, the lag gate, stragglers and the accounts. Pure: events in, instructions out."""
