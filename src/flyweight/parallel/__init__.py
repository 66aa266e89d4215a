"""One model over several processes: ranks that each hold a part of its weights and K/V."""
