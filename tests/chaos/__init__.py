"""The campaign: every fault in every mode, and the ledger of what came of it."""
