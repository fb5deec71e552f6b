package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/nodeapi/internal/pods"
	"github.com/microlet/microlet/services/nodeapi/internal/runtime"
)

// gateWebSockets makes the node speak to WebSocket clients itself, instead of leaving their
// translation to the apiserver.
const gateWebSockets = "ExtendWebSocketsToKubelet"

// pod finds the pod that a path names, or answers the request.
func (s *Server) pod(w http.ResponseWriter, r *http.Request) (*v1.Pod, bool) {
	p, ok := s.options.Pods.ByName(r.PathValue("namespace"), r.PathValue("pod"))
	if ok && pods.Is(p, types.UID(r.PathValue("uid"))) {
		return p, true
	}
	if !ok && !s.options.Pods.Known() {
		notKnownYet(w)
		return nil, false
	}
	http.Error(w, "pod does not exist", http.StatusNotFound)
	return nil, false
}

// named is a pod by the name in the path, for which the caller was authorized.
func named(r *http.Request, p *v1.Pod) runtime.Pod {
	return runtime.Pod{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod"), UID: string(p.UID)}
}

// fail answers with the runtime's words.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	if !errors.Is(err, runtime.ErrNoContainer) && !errors.Is(err, runtime.ErrNoSandbox) {
		s.options.Log.Warn("request failed", logkey.Path, r.URL.Path, logkey.Err, err)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_ = streaming.WriteError(err, w) // who asked may have gone
}

// session returns the pod of a session in a container, and what streams the session has. If it returns false, it has
// answered the request.
func (s *Server) session(w http.ResponseWriter, r *http.Request) (*v1.Pod, *remotecommand.Options, bool) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, nil, false
	}
	p, ok := s.pod(w, r)
	return p, options, ok
}

// container returns the runtime's ID of a pod's container. If it returns false, it has answered the request.
func (s *Server) container(w http.ResponseWriter, r *http.Request, p *v1.Pod, name string) (string, bool) {
	id, err := s.options.Runtime.Container(r.Context(), named(r, p), name)
	if err != nil {
		s.fail(w, r, err)
	}
	return id, err == nil
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	p, options, ok := s.session(w, r)
	if !ok {
		return
	}
	container, ok := s.container(w, r, p, r.PathValue("container"))
	if !ok {
		return
	}
	command := r.URL.Query()["command"]
	to, err := s.options.Runtime.Exec(r.Context(), container, command, runtime.Stream{
		Stdin: options.Stdin, Stdout: options.Stdout, Stderr: options.Stderr, TTY: options.TTY,
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.proxy(w, r, to, options, "exec")
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	p, options, ok := s.session(w, r)
	if !ok {
		return
	}
	name := r.PathValue("container")
	spec := podutil.Container(&p.Spec, name)
	if spec == nil {
		http.Error(w,
			fmt.Sprintf("container %s not found in pod %s_%s", name, p.Name, p.Namespace), http.StatusNotFound)
		return
	}
	container, ok := s.container(w, r, p, name)
	if !ok {
		return
	}
	// Whether there is a terminal was decided when the process was started, not now.
	to, err := s.options.Runtime.Attach(r.Context(), container, runtime.Stream{
		Stdin: options.Stdin, Stdout: options.Stdout, Stderr: options.Stderr, TTY: spec.TTY,
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.proxy(w, r, to, options, "attach")
}

// proxy hands the connection over to the runtime.
func (s *Server) proxy(w http.ResponseWriter, r *http.Request, to *url.URL, o *remotecommand.Options, kind string) {
	if !setWriteDeadline(w, 0) {
		return
	}
	if s.options.Gate(gateWebSockets) && wsstream.IsWebSocketRequestWithStreamCloseProtocol(r) {
		s.upgrades.WithLabelValues(kind).Inc()
		translator.NewStreamTranslatorHandler(to, nil, 0, translator.Options{
			Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY,
		}).ServeHTTP(w, r)
		return
	}
	s.upgrader(to).ServeHTTP(w, r)
}

func (s *Server) upgrader(to *url.URL) http.Handler {
	return proxy.NewUpgradeAwareHandler(to, nil, false, true, responder{s})
}

// responder answers when the runtime does not.
type responder struct{ s *Server }

func (e responder) Error(w http.ResponseWriter, r *http.Request, err error) {
	e.s.options.Log.Warn("stream could not be handed over", logkey.Path, r.URL.Path, logkey.Err, err)
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	tunnel := s.options.Gate(gateWebSockets) && wsstream.IsWebSocketRequestWithTunnelingProtocol(r)
	options := &portforward.V4Options{}
	if !tunnel {
		var err error
		if options, err = portforward.NewV4Options(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	p, ok := s.pod(w, r)
	if !ok {
		return
	}
	sandbox, err := s.options.Runtime.Sandbox(r.Context(), named(r, p))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	to, err := s.options.Runtime.PortForward(r.Context(), sandbox, options.Ports)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if !setWriteDeadline(w, 0) {
		return
	}
	handler := s.upgrader(to)
	if tunnel {
		s.upgrades.WithLabelValues("portforward").Inc()
		handler = translator.NewTunnelingHandler(handler)
	}
	handler.ServeHTTP(w, r)
}

// run runs a command to its end; its words are split at spaces, as the kubelet's.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	p, ok := s.pod(w, r)
	if !ok {
		return
	}
	container, ok := s.container(w, r, p, r.PathValue("container"))
	if !ok {
		return
	}
	command := r.URL.Query().Get("cmd")
	if command == "" {
		http.Error(w, "cmd is empty: give the command to run", http.StatusBadRequest)
		return
	}
	if !setWriteDeadline(w, s.options.LongWrite) {
		return
	}
	out, err := s.options.Runtime.Run(r.Context(), container, strings.Split(command, " "))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, out)
}

// errNoFlush cannot happen with the servers of this service.
var errNoFlush = errors.New("the connection cannot be flushed, so a log cannot be followed on it")
