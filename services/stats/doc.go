// Package stats measures what the node, its pods and their containers use.
//
// It serves gRPC on sock/stats/grpc.sock: the kubelet's Summary API, and the pages /metrics/resource and
// /metrics/cadvisor, which nodeapi passes on. It reads /proc, /sys and the cgroups itself, through cAdvisor's library
// as far as that reads one thing at a time (see internal/cgroupstats); what the writable layers of containers and the
// images take it asks of the runtime through podsync's CRI gateway. Names of pods and containers come from PODS and
// POD_STATUS. It puts STATS/summary. Child processes measure the volumes and logs of pods (see
// services/internal/diskusage).
//
// Figures are taken on request, and once a minute otherwise. Concurrent readers share a snapshot, which is no older
// than --housekeeping-interval (10 s), and says when it was taken. A source that does not answer delays no reader: the
// answer then has its last figures, says so, and after two minutes is an error instead.
//
// stats stores nothing. When it is down or killed for its memory, only figures are missing.
package stats
