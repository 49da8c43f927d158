"""The Ticket: owner of everything a request holds."""
