"""Who runs where: controller, control plane, launchers."""
