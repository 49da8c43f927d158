"""The data plane: sends each request to the worker where it is answered soonest, and survives that worker's loss.

state/       pure: what is known of endpoints: snapshots, load columns, prefix index
collect/     how it is learned: static lists, health checks
scheduling/  pure: filters → scorers → picker
tickets/     the Ticket: one object that owns everything a request holds
upstream/    connections to workers: pools, attempts, relay
gateway/     the HTTP front: OpenAI API and errors
telemetry/   metrics, access log
"""
