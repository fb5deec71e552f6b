package server

import (
	"encoding/json"
	"fmt"
	"net/http"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var podList = metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}

func (s *Server) listPods(w http.ResponseWriter, _ *http.Request) {
	list, err := s.options.Pods.List()
	if err == nil && !s.options.Pods.Known() && len(list) == 0 {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the node's pods are not known yet", http.StatusServiceUnavailable)
		return
	}
	s.answerPods(w, list, err)
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
	data, err := json.Marshal(v1.PodList{TypeMeta: podList, Items: list})
	if err != nil {
		http.Error(w, fmt.Sprintf("encode pods: %v", err), http.StatusInternalServerError)
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
