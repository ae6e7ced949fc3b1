"""How people write durable functions: workflows, steps, their options and their registry."""
