"""Who runs where: controller, control plane, launchers."""

import os

# gRPC would stop and restart its threads around every fork of a process that it runs in, and in doing so closes
# descriptors that belong to others by then: about one in thirty children of `subprocess` lost a pipe. Its own library
# reads this when it first starts. Children do not use the gRPC of their parent, so nothing needs the handlers.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
