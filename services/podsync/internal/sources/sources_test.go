package sources

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/podsync/internal/sources/mirror"
)

const (
	api   = podsyncv1.PodSource_POD_SOURCE_API
	file  = podsyncv1.PodSource_POD_SOURCE_FILE
	web   = podsyncv1.PodSource_POD_SOURCE_HTTP
	local = podsyncv1.PodSource_POD_SOURCE_LOCAL
)

func TestTheConfigurationNamesTheSources(t *testing.T) {
	for _, c := range []struct {
		kubeconfig, path, url string
		want                  []podsyncv1.PodSource
		names                 string
	}{
		{want: []podsyncv1.PodSource{local}, names: "local"},
		{kubeconfig: "k", want: []podsyncv1.PodSource{api, local}, names: "api, local"},
		{kubeconfig: "k", path: "/manifests", url: "http://192.0.2.1", want: []podsyncv1.PodSource{api, file, web, local},
			names: "api, file, http, local"},
	} {
		k := &kubeletconfig.Config{}
		k.Node.Kubeconfig, k.Node.RootDir = c.kubeconfig, t.TempDir()
		k.Kubelet.StaticPodPath, k.Kubelet.StaticPodURL = c.path, c.url
		log, metrics := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
		mirrors, err := mirror.New(mirror.Options{NodeName: "n", Log: log, Metrics: metrics})
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(Options{
			NodeName: "n", Kubelet: k, Client: fake.NewClientset(), Mirrors: mirrors, Events: record.NewFakeRecorder(1),
			Log: log, Metrics: metrics,
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Kinds(); !slices.Equal(got, c.want) || Names(got) != c.names {
			t.Errorf("%+v: sources %v, called %q", c, got, Names(got))
		}
	}
}

// heard writes down who was called with what, in order.
type heard []string

func (h *heard) Want(p *v1.Pod) { *h = append(*h, "mirrors want "+string(p.UID)) }
func (h *heard) SetPod(p *v1.Pod, from podsyncv1.PodSource) {
	*h = append(*h, "set "+string(p.UID)+" of "+Names([]podsyncv1.PodSource{from}))
}
func (h *heard) RemovePod(uid types.UID, _ podsyncv1.PodSource) {
	*h = append(*h, "remove "+string(uid))
}
func (h *heard) SourceSynced(from podsyncv1.PodSource) {
	*h = append(*h, "synced "+Names([]podsyncv1.PodSource{from}))
}

func TestAStaticPodIsMirroredBeforeItsWorkerBegins(t *testing.T) {
	var h heard
	s := sink{&h, &h}
	s.SetPod(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "static"}}, file)
	s.SetPod(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "ordinary"}}, api)
	s.SourceSynced(file)
	s.RemovePod("static", file)
	want := []string{"mirrors want static", "set static of file", "set ordinary of api", "synced file", "remove static"}
	if !slices.Equal(h, want) {
		t.Errorf("reported %q, want %q", h, want)
	}
}
