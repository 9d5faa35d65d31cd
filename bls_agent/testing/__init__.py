"""What helps to test a service that embeds the agent."""
