package server

import (
	"encoding/json"
	"fmt"
	"net/http"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var (
	podList = metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}
	onePod  = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
)

// gateAllocatedPods serves the pods with the resources that are granted.
const gateAllocatedPods = "KubeletAllocatedPodsEndpoint"

func (s *Server) listPods(w http.ResponseWriter, _ *http.Request) {
	list, err := s.options.Pods.List()
	s.answerKnown(w, list, err)
}

// allocatedPods are those that run or may run, with the resources that are granted.
func (s *Server) allocatedPods(w http.ResponseWriter, _ *http.Request) {
	list, err := s.options.Pods.Allocated()
	s.answerKnown(w, list, err)
}

// answerKnown answers with a list of the node's pods, unless none is known yet.
func (s *Server) answerKnown(w http.ResponseWriter, list []v1.Pod, err error) {
	if err == nil && len(list) == 0 && !s.options.Pods.Known() {
		notKnownYet(w)
		return
	}
	s.answerPods(w, list, err)
}

func notKnownYet(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "the node's pods are not known yet", http.StatusServiceUnavailable)
}

// allocatedPod is one of allocatedPods.
func (s *Server) allocatedPod(w http.ResponseWriter, r *http.Request) {
	p, ok := s.options.Pods.AllocatedByName(r.PathValue("namespace"), r.PathValue("pod"),
		types.UID(r.PathValue("uid")))
	switch {
	case ok:
		p.TypeMeta = onePod
		s.answerJSON(w, p, "pod")
	case !s.options.Pods.Known():
		notKnownYet(w)
	default:
		http.Error(w, "pod not found", http.StatusNotFound)
	}
}

// runningPods are all pods of the runtime, with any creator.
func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	running, err := s.options.Runtime.Pods(r.Context())
	list := make([]v1.Pod, 0, len(running))
	for _, p := range running {
		pod := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID)}}
		for _, c := range p.Containers {
			pod.Spec.Containers = append(pod.Spec.Containers,
				v1.Container{Name: c.GetMetadata().GetName(), Image: c.GetImage().GetImage()})
		}
		list = append(list, pod)
	}
	s.answerPods(w, list, err)
}

func (s *Server) answerPods(w http.ResponseWriter, list []v1.Pod, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	s.answerJSON(w, v1.PodList{TypeMeta: podList, Items: list}, "pods")
}

func (s *Server) answerJSON(w http.ResponseWriter, v any, what string) {
	data, err := json.Marshal(v)
	if err != nil {
		http.Error(w, fmt.Sprintf("encode %s: %v", what, err), http.StatusInternalServerError)
		return
	}
	writeJSON(w, data)
}

// configz is the effective configuration, under the name that the kubelet's has.
func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	data, err := json.Marshal(map[string]any{"kubeletconfig": s.options.Kubelet})
	if err != nil {
		http.Error(w, fmt.Sprintf("encode configuration: %v", err), http.StatusInternalServerError)
		return
	}
	writeJSON(w, data)
}

func writeJSON(w http.ResponseWriter, data []byte) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) //nolint:gosec // JSON, and no page; the caller may have gone
}
