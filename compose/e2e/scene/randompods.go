package scene

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/podgen"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/rig"
)

// seedVariable repeats a run of random pods.
const seedVariable = "MICROLET_SEED"

// Seed is the one that the environment names, or else fallback; it is printed.
func Seed(t *testing.T, fallback uint64) uint64 {
	t.Helper()
	if text := os.Getenv(seedVariable); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s=%q: use a number: %v", seedVariable, text, err)
		}
		fallback = n
	}
	t.Logf("the seed of the random pods is %d: repeat them with %s=%d", fallback, seedVariable, fallback)
	return fallback
}

// RandomPods makes what random pods name, and returns who makes them.
func (s *Scene) RandomPods(opts podgen.Options) *podgen.Generator {
	s.T.Helper()
	ctx := s.T.Context()
	must := func(err error) {
		s.T.Helper()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			s.T.Fatal(err)
		}
	}
	class, priorities := podgen.ClusterObjects()
	_, err := s.API.NodeV1().RuntimeClasses().Create(ctx, class, metav1.CreateOptions{})
	must(err)
	for name, value := range priorities {
		_, err := s.API.SchedulingV1().PriorityClasses().Create(ctx,
			&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value},
			metav1.CreateOptions{})
		must(err)
	}
	for _, o := range podgen.Objects(s.Namespace) {
		switch o := o.(type) {
		case *corev1.ConfigMap:
			_, err = s.API.CoreV1().ConfigMaps(s.Namespace).Create(ctx, o, metav1.CreateOptions{})
		case *corev1.Secret:
			_, err = s.API.CoreV1().Secrets(s.Namespace).Create(ctx, o, metav1.CreateOptions{})
		case *corev1.ServiceAccount:
			_, err = s.API.CoreV1().ServiceAccounts(s.Namespace).Create(ctx, o, metav1.CreateOptions{})
		case *corev1.Service:
			_, err = s.API.CoreV1().Services(s.Namespace).Create(ctx, o, metav1.CreateOptions{})
		default:
			err = fmt.Errorf("random pods name a %T", o)
		}
		must(err)
	}
	opts.Image = rig.BusyboxImage
	// Below the kubelet's folder, which is a shared mount: pods that want to see mounts of the host need one.
	opts.HostDir = filepath.Join(s.RootDir(), "podgen-"+s.Namespace)
	must(s.MkdirAll(opts.HostDir))
	opts.Server = rig.AgnhostImage
	opts.Answers = s.answers()
	opts.Seccomp = "podgen.json"
	must(s.WriteFile(filepath.Join(s.RootDir(), "seccomp", opts.Seccomp), []byte(`{"defaultAction": "SCMP_ACT_ALLOW"}`)))
	// Their images are present from now on, for those that never pull.
	server := PausePod("brings-the-server")
	server.Spec.Containers[0].Image, server.Spec.Containers[0].Command, server.Spec.Containers[0].Args = opts.Server, nil,
		[]string{"pause"}
	s.CreatePods(ScriptPod("brings-the-image", Forever), server)
	s.WaitReady(Patience, "brings-the-image", "brings-the-server")
	s.DeletePods("brings-the-image", "brings-the-server")
	s.Wait(Patience, "the end of the pods that brought the images", s.AreGone("brings-the-image", "brings-the-server"))
	return podgen.New(opts)
}

// answers returns a port of the node's 127.0.0.1 on which every request is answered until the test ends.
func (s *Scene) answers() int32 {
	s.T.Helper()
	if s.OnMachine() {
		return s.answersThere()
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		fmt.Fprintln(w, "yes")
	}))
	s.T.Cleanup(server.Close)
	return int32(server.Listener.Addr().(*net.TCPAddr).Port)
}

// AtRest reports whether a random pod has come to where it stays.
func AtRest(p *corev1.Pod) bool {
	switch {
	case p == nil:
		return false
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return true
	default:
		return !podgen.Ends(p) && record.PodCondition(p, corev1.ContainersReady) == corev1.ConditionTrue
	}
}
