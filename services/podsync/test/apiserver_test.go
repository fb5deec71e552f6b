package test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// apiserver keeps pods and knows one Node, in JSON over HTTP, with versions and watches. Of all else it has none.
type apiserver struct {
	t      *testing.T
	server *httptest.Server

	mu      sync.Mutex
	pods    map[string]*v1.Pod // by namespace/name
	events  []event            // one a version: that of events[i] is i+1
	uids    int
	changed chan struct{}
}

type event struct {
	Type   string  `json:"type"`
	Object *v1.Pod `json:"object"`
}

func newAPIServer(t *testing.T) *apiserver {
	a := &apiserver{t: t, pods: map[string]*v1.Pod{}, changed: make(chan struct{})}
	a.server = httptest.NewServer(a.routes())
	t.Cleanup(func() {
		a.server.CloseClientConnections() // the watches
		a.server.Close()
	})
	return a
}

// kubeconfig is the file that leads to a server.
func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(
		`{"apiVersion": "v1", "kind": "Config", "current-context": "x", "clusters": [{"name": "x", "cluster": {"server": %q}}],
		"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}], "users": [{"name": "x", "user": {"token": "x"}}]}`, server)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func (a *apiserver) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/pods", a.list)
	mux.HandleFunc("POST /api/v1/namespaces/{namespace}/pods", func(w http.ResponseWriter, r *http.Request) {
		p := &v1.Pod{}
		if err := json.NewDecoder(r.Body).Decode(p); err != nil {
			a.t.Errorf("create a pod: %v", err)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		key := r.PathValue("namespace") + "/" + p.Name
		if a.pods[key] != nil {
			fail(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
			return
		}
		a.uids++
		p.UID = types.UID("api-" + strconv.Itoa(a.uids))
		a.put("ADDED", key, p)
		answer(w, p)
	})
	const pod = "/api/v1/namespaces/{namespace}/pods/{name}"
	mux.HandleFunc("GET "+pod,
		a.with(func(w http.ResponseWriter, _ *http.Request, _ string, p *v1.Pod) { answer(w, p) }))
	mux.HandleFunc("DELETE "+pod, a.with(func(w http.ResponseWriter, _ *http.Request, key string, p *v1.Pod) {
		a.put("DELETED", key, p.DeepCopy())
		answer(w, p)
	}))
	mux.HandleFunc("PATCH "+pod+"/status", a.with(func(w http.ResponseWriter, r *http.Request, key string, p *v1.Pod) {
		patch, _ := io.ReadAll(r.Body)
		was, _ := json.Marshal(p)
		is, err := strategicpatch.StrategicMergePatch(was, patch, v1.Pod{})
		next := &v1.Pod{}
		if err == nil {
			err = json.Unmarshal(is, next)
		}
		if err != nil {
			a.t.Errorf("patch %s: %v", patch, err)
		}
		a.put("MODIFIED", key, next)
		answer(w, next)
	}))
	mux.HandleFunc("GET /api/v1/nodes/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w,
			&v1.Node{
				TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
				ObjectMeta: metav1.ObjectMeta{Name: r.PathValue("name"), UID: "node"},
			})
	})
	for path, kind := range map[string][2]string{
		"/api/v1/nodes":                       {"NodeList", "v1"},
		"/api/v1/services":                    {"ServiceList", "v1"},
		"/apis/node.k8s.io/v1/runtimeclasses": {"RuntimeClassList", "node.k8s.io/v1"},
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("watch") == "" {
				answer(w,
					map[string]any{
						"kind":       kind[0],
						"apiVersion": kind[1],
						"metadata":   map[string]string{"resourceVersion": "1"},
						"items":      []int{},
					})
				return
			}
			a.follow(w, r, 0, false)
		})
	}
	return mux
}

// with calls do with a pod that there is, holding mu.
func (a *apiserver) with(do func(w http.ResponseWriter, r *http.Request, key string, p *v1.Pod)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		key := r.PathValue("namespace") + "/" + r.PathValue("name")
		if p := a.pods[key]; p != nil {
			do(w, r, key, p)
			return
		}
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

// put notes what happened to a pod. The caller holds mu.
func (a *apiserver) put(what, key string, p *v1.Pod) {
	p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	p.ResourceVersion = strconv.Itoa(len(a.events) + 1)
	a.events = append(a.events, event{what, p})
	a.pods[key] = p
	if what == "DELETED" {
		delete(a.pods, key)
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *apiserver) list(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") != "" {
		from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
		if err != nil {
			fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
			return
		}
		a.follow(w, r, from, true)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	list := &v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	list.ResourceVersion = strconv.Itoa(len(a.events))
	for _, p := range a.pods {
		list.Items = append(list.Items, *p)
	}
	answer(w, list)
}

// follow streams what happens to pods after a version, or nothing, until its reader goes.
func (a *apiserver) follow(w http.ResponseWriter, r *http.Request, from int, pods bool) {
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	for {
		a.mu.Lock()
		news, changed := a.events[min(from, len(a.events)):], a.changed
		from = len(a.events)
		a.mu.Unlock()
		for _, e := range news {
			if !pods {
				break
			}
			if err := json.NewEncoder(w).Encode(e); err != nil {
				return
			}
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(&metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Code:     int32(code),
		Reason:   reason,
		Message:  string(reason),
	})
}

// shows is a pod in short: its UID, and the restart count of its container if that runs.
func (a *apiserver) shows(name string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods["ns/"+name]
	switch {
	case p == nil:
		return "no pod"
	case len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].State.Running == nil ||
		p.Status.Phase != v1.PodRunning:
		return fmt.Sprintf("%s does not run: %s %v", p.UID, p.Status.Phase, p.Status.ContainerStatuses)
	}
	return fmt.Sprintf("%s runs, restarted %d times", p.UID, p.Status.ContainerStatuses[0].RestartCount)
}

// deletions is how many pods were deleted.
func (a *apiserver) deletions() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.events {
		if strings.HasPrefix(e.Type, "DELETED") {
			n++
		}
	}
	return n
}
