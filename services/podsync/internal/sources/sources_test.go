package sources

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
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
		s, err := New(Options{
			NodeName: "n", Kubelet: k, Client: fake.NewClientset(), Mirrors: &calls{}, Events: record.NewFakeRecorder(1),
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
