"""The custom resources: ``NodeGpus``, ``PlacementReservation``, ``PlacementLedger``, and their definitions."""
