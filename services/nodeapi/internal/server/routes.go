// Package server answers the requests of the kubelet's HTTP API.
//
// Only the table of routes defines the paths, who may call them, and their limits. A path that is not in the table
// is answered like one that needs the right to everything.
package server

import (
	"net/http"
	"slices"
)

// cost is what a request takes while it lasts.
type cost int

const (
	// short: an answer of bounded size, soon.
	short cost = iota
	// long: one that may grow for hours, such as a log that is followed.
	long
	// stream: a connection that is handed over to the runtime.
	stream
)

// route is one row of the API.
type route struct {
	// pattern is http.ServeMux's, without method.
	pattern string
	// methods that it answers; none means all.
	methods []string
	// subresources of the node, of which the caller needs one; a refusal names them in this order.
	subresources []string
	cost         cost
	// bucket is the path's name in metrics.
	bucket string
	// public: the read-only port answers it too.
	public bool
	handle http.HandlerFunc
}

var (
	get       = []string{http.MethodGet}
	getOrPost = []string{http.MethodGet, http.MethodPost}
)

// The subresources by which the kubelet authorizes. Where there are two, the first is the fine-grained one.
var (
	subProxy      = []string{"proxy"}
	subPods       = []string{"pods", "proxy"}
	subHealthz    = []string{"healthz", "proxy"}
	subConfigz    = []string{"configz", "proxy"}
	subFlagz      = []string{"configz"}
	subStatusz    = []string{"statusz"}
	subStats      = []string{"stats"}
	subMetrics    = []string{"metrics"}
	subLog        = []string{"log"}
	subCheckpoint = []string{"checkpoint"}
)

// routes are all that this server knows, as the configuration has them.
func (s *Server) routes() []route {
	if !s.options.DebuggingHandlers {
		return append(s.publicRoutes(), disabledRoutes()...)
	}
	return slices.Concat(s.publicRoutes(), s.debugRoutes(), s.gatedRoutes())
}

// publicRoutes are those that need no debugging handlers.
func (s *Server) publicRoutes() []route {
	return []route{
		{pattern: "/healthz", subresources: subHealthz, bucket: "healthz", public: true, handle: s.healthz},
		{pattern: "/healthz/{check}", subresources: subHealthz, bucket: "healthz", public: true, handle: s.healthCheck},
		{pattern: "/pods", methods: get, subresources: subPods, bucket: "pods", public: true, handle: s.listPods},
		{pattern: "/pods/{$}", methods: get, subresources: subPods, bucket: "pods", public: true, handle: s.listPods},
		{pattern: "/metrics", subresources: subMetrics, bucket: "metrics", public: true, handle: s.metrics},
		{pattern: "/metrics/probes", subresources: subMetrics, bucket: "metrics/probes", public: true,
			handle: s.probeMetrics},
		{pattern: "/metrics/slis", subresources: subMetrics, bucket: "metrics/slis", public: true, handle: s.slis.ServeHTTP},
		{pattern: "/metrics/cadvisor", subresources: subMetrics, bucket: "metrics/cadvisor", public: true,
			handle: s.options.Stats.Cadvisor},
		{pattern: "/metrics/resource", subresources: subMetrics, bucket: "metrics/resource", public: true,
			handle: s.options.Stats.Resource},
		{pattern: "/stats/summary", methods: getOrPost, subresources: subStats, bucket: "stats", public: true,
			handle: s.options.Stats.Summary},
		{pattern: "/stats/summary/{$}", methods: getOrPost, subresources: subStats, bucket: "stats", public: true,
			handle: s.options.Stats.Summary},
		// Only callers who may read stats learn whether there is more below it.
		{pattern: "/stats/", subresources: subStats, bucket: "stats", public: true, handle: http.NotFound},
	}
}

// disabledRoutes say that the debugging handlers are off.
func disabledRoutes() []route {
	var all []route
	off := disabled("Debug endpoints are disabled.")
	for _, path := range []string{"/run/", "/exec/", "/attach/", "/portForward/", "/containerLogs/", "/runningpods/",
		"/debug/pprof/", "/logs/"} {
		sub := subProxy
		switch path {
		case "/logs/":
			sub = subLog
		case "/runningpods/":
			sub = subPods
		}
		all = append(all, route{pattern: path, subresources: sub, bucket: bucketOf(path), handle: off})
	}
	return all
}

const (
	podPath          = "/{namespace}/{pod}"
	podUIDPath       = "/{namespace}/{pod}/{uid}"
	containerPath    = "/{namespace}/{pod}/{container}"
	containerUIDPath = "/{namespace}/{pod}/{uid}/{container}"
)

// debugRoutes are the debugging handlers.
func (s *Server) debugRoutes() []route {
	return []route{
		{pattern: "/exec" + containerPath, methods: getOrPost, subresources: subProxy, cost: stream, bucket: "exec",
			handle: s.exec},
		{pattern: "/exec" + containerUIDPath, methods: getOrPost, subresources: subProxy, cost: stream, bucket: "exec",
			handle: s.exec},
		{pattern: "/attach" + containerPath, methods: getOrPost, subresources: subProxy, cost: stream, bucket: "attach",
			handle: s.attach},
		{pattern: "/attach" + containerUIDPath, methods: getOrPost, subresources: subProxy, cost: stream, bucket: "attach",
			handle: s.attach},
		{pattern: "/portForward" + podPath, methods: getOrPost, subresources: subProxy, cost: stream, bucket: "portForward",
			handle: s.portForward},
		{pattern: "/portForward" + podUIDPath, methods: getOrPost, subresources: subProxy, cost: stream,
			bucket: "portForward", handle: s.portForward},
		{pattern: "/run" + containerPath, methods: []string{http.MethodPost}, subresources: subProxy, cost: long,
			bucket: "run", handle: s.run},
		{pattern: "/run" + containerUIDPath, methods: []string{http.MethodPost}, subresources: subProxy, cost: long,
			bucket: "run", handle: s.run},
		{pattern: "/containerLogs" + containerPath, methods: get, subresources: subProxy, cost: long, bucket: "containerLogs",
			handle: s.containerLogs},
		{pattern: "/runningpods", methods: get, subresources: subPods, bucket: "runningpods", handle: s.runningPods},
		{pattern: "/runningpods/{$}", methods: get, subresources: subPods, bucket: "runningpods", handle: s.runningPods},
		{pattern: "/configz", subresources: subConfigz, bucket: "configz", handle: s.configz},
		s.switched(route{
			pattern:      "/logs/",
			methods:      get,
			subresources: subLog,
			cost:         long,
			bucket:       "logs",
			handle:       s.nodeLogs,
		},
			*s.options.Kubelet.EnableSystemLogHandler, "logs endpoint is disabled."),
		s.switched(route{
			pattern:      "/debug/pprof/",
			methods:      get,
			subresources: subProxy,
			cost:         long,
			bucket:       "debug",
			handle:       s.profile,
		},
			*s.options.Kubelet.EnableProfilingHandler, "profiling endpoint is disabled."),
		s.switched(route{pattern: "/debug/flags/v", subresources: subProxy, bucket: "debug", handle: s.verbosity},
			*s.options.Kubelet.EnableDebugFlagsHandler, "flags endpoint is disabled."),
	}
}

// gatedRoutes are the routes with an enabled feature gate.
func (s *Server) gatedRoutes() []route {
	var all []route
	if s.options.Gate(gateCheckpoint) {
		all = append(all,
			route{
				pattern:      "/checkpoint" + containerPath,
				methods:      []string{http.MethodPost},
				subresources: subCheckpoint,
				cost:         long,
				bucket:       "checkpoint",
				handle:       s.checkpoint,
			})
	}
	if s.options.Gate(gateAllocatedPods) {
		all = append(all,
			route{pattern: "/allocatedPods", methods: get, subresources: subPods, bucket: "allocatedPods",
				handle: s.allocatedPods},
			route{pattern: "/allocatedPods" + podPath, methods: get, subresources: subPods, bucket: "allocatedPods",
				handle: s.allocatedPod},
			route{pattern: "/allocatedPods" + podUIDPath, methods: get, subresources: subPods, bucket: "allocatedPods",
				handle: s.allocatedPod})
	}
	if s.options.Gate(gateFlagz) {
		all = append(all,
			route{pattern: "/flagz", methods: get, subresources: subFlagz, bucket: "flagz", handle: s.flagz})
	}
	if s.options.Gate(gateStatusz) {
		all = append(all,
			route{pattern: "/statusz", methods: get, subresources: subStatusz, bucket: "statusz", handle: s.statusz})
	}
	return all
}

// switched is the route, or one that says that it is off.
func (s *Server) switched(r route, on bool, text string) route {
	if !on {
		r.methods, r.cost, r.handle = nil, short, disabled(text)
	}
	return r
}

// bucketOf is the first segment of a path.
func bucketOf(path string) string {
	for i, c := range path[1:] {
		if c == '/' {
			return path[1 : i+1]
		}
	}
	return path[1:]
}

func disabled(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, http.StatusMethodNotAllowed) }
}

func (r route) answers(method string) bool {
	return len(r.methods) == 0 || slices.Contains(r.methods, method)
}
