"""One request on its way: attempts, time-outs, holding, health of replicas, and an end that always comes."""
