package test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// apiserver keeps one Node, its Lease and Events, in JSON over HTTP, with versions, conflicts and a
// watch. It can go away, and come back at the same address.
type apiserver struct {
	t       *testing.T
	address string

	mu      sync.Mutex
	server  *http.Server
	version int
	node    *v1.Node
	lease   *coordinationv1.Lease
	events  []v1.Event
	ready   []v1.ConditionStatus // of the Node, at each write
	renewed []time.Time
	changed chan struct{}
}

func newAPIServer(t *testing.T) *apiserver {
	a := &apiserver{t: t, address: "127.0.0.1:0", changed: make(chan struct{})}
	a.start()
	t.Cleanup(a.stop)
	return a
}

func (a *apiserver) start() {
	a.t.Helper()
	l, err := net.Listen("tcp", a.address)
	if err != nil {
		a.t.Fatal(err)
	}
	a.address = l.Addr().String()
	server := &http.Server{Handler: a.routes(), ReadHeaderTimeout: time.Minute}
	a.mu.Lock()
	a.server = server
	a.mu.Unlock()
	go func() { _ = server.Serve(l) }()
}

// stop closes the listener and every connection.
func (a *apiserver) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.server.Close()
}

func (a *apiserver) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes", a.listNodes)
	mux.HandleFunc("POST /api/v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		n := &v1.Node{}
		a.read(r, n)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.node != nil {
			fail(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
			return
		}
		n.UID = "node-uid"
		a.writeNode(n)
		answer(w, http.StatusCreated, a.node)
	})
	mux.HandleFunc("GET /api/v1/nodes/{name}", func(w http.ResponseWriter, _ *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.node == nil {
			fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		answer(w, http.StatusOK, a.node)
	})
	mux.HandleFunc("PATCH /api/v1/nodes/{name}/status", func(w http.ResponseWriter, r *http.Request) {
		patch, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		defer a.mu.Unlock()
		was, _ := json.Marshal(a.node)
		is, err := strategicpatch.StrategicMergePatch(was, patch, v1.Node{})
		if err != nil {
			a.t.Errorf("patch %s: %v", patch, err)
		}
		n := &v1.Node{}
		_ = json.Unmarshal(is, n)
		a.writeNode(n)
		answer(w, http.StatusOK, a.node)
	})
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	mux.HandleFunc("GET "+leases+"/{name}", func(w http.ResponseWriter, _ *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.lease == nil {
			fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		answer(w, http.StatusOK, a.lease)
	})
	mux.HandleFunc("POST "+leases, func(w http.ResponseWriter, r *http.Request) { a.writeLease(w, r) })
	mux.HandleFunc("PUT "+leases+"/{name}", func(w http.ResponseWriter, r *http.Request) { a.writeLease(w, r) })
	mux.HandleFunc("POST /api/v1/namespaces/default/events", func(w http.ResponseWriter, r *http.Request) {
		e := &v1.Event{}
		a.read(r, e)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.events = append(a.events, *e)
		answer(w, http.StatusCreated, e)
	})
	mux.HandleFunc("PATCH /api/v1/namespaces/default/events/{name}", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, &v1.Event{})
	})
	return mux
}

// listNodes lists, and watches by sending the Node whenever it changed.
func (a *apiserver) listNodes(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if got := q.Get("fieldSelector"); got != "metadata.name="+nodeName {
		a.t.Errorf("field selector %q: a node may see no other node", got)
	}
	if q.Get("sendInitialEvents") == "true" {
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	a.mu.Lock()
	list := &v1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
	list.ResourceVersion = strconv.Itoa(a.version)
	if a.node != nil {
		list.Items = append(list.Items, *a.node)
	}
	a.mu.Unlock()
	if q.Get("watch") == "" {
		answer(w, http.StatusOK, list)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	reported := q.Get("resourceVersion")
	for {
		a.mu.Lock()
		n, changed := a.node.DeepCopy(), a.changed
		a.mu.Unlock()
		if n != nil && n.ResourceVersion != reported {
			raw, _ := json.Marshal(n)
			_, _ = fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`+"\n", raw)
			reported = n.ResourceVersion
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func (a *apiserver) writeNode(n *v1.Node) {
	a.version++
	n.TypeMeta = metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}
	n.ResourceVersion = strconv.Itoa(a.version)
	a.node = n
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			a.ready = append(a.ready, c.Status)
		}
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *apiserver) writeLease(w http.ResponseWriter, r *http.Request) {
	l := &coordinationv1.Lease{}
	a.read(r, l)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lease != nil && l.ResourceVersion != a.lease.ResourceVersion {
		fail(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	a.version++
	l.TypeMeta = metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}
	l.ResourceVersion = strconv.Itoa(a.version)
	a.lease = l
	a.renewed = append(a.renewed, time.Now())
	answer(w, http.StatusOK, l)
}

func (a *apiserver) read(r *http.Request, into any) {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		a.t.Errorf("%s %s: %v", r.Method, r.URL, err)
	}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	answer(w, code, &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Reason: reason, Code: int32(code), Message: strings.ToLower(string(reason)),
	})
}
