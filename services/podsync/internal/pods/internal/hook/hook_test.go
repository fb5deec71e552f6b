package hook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/kubeversion"
	"github.com/microlet/microlet/services/podsync/internal/criconfig"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

type execFunc func(id string, command []string) (stdout, stderr string, code int32, err error)

func (f execFunc) ExecSync(_ context.Context, id string, command []string,
	_ time.Duration) (stdout, stderr []byte, code int32, err error) {
	out, errs, code, err := f(id, command)
	return []byte(out), []byte(errs), code, err
}

func newRunner(t *testing.T, exec execFunc) (*Runner, *record.FakeRecorder) {
	t.Helper()
	events := record.NewFakeRecorder(10)
	r, err := New(Options{
		Exec:    exec,
		Events:  events,
		Log:     slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, events
}

func input(ip string) Input {
	return Input{
		Pod:         &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}},
		Container:   &v1.Container{Name: "c", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: 8080}}},
		ContainerID: "id",
		PodIP:       ip,
	}
}

func TestExec(t *testing.T) {
	r, _ := newRunner(t, func(id string, command []string) (string, string, int32, error) {
		if id != "id" {
			t.Errorf("in container %q", id)
		}
		switch command[0] {
		case "fails":
			return "out", "err", 7, nil
		case "breaks":
			return "", "", 0, errors.New("no runtime")
		default:
			return "fine", "", 0, nil
		}
	})
	for command, want := range map[string]string{
		"fine":   "",
		"fails":  `Exec lifecycle hook ([fails -x]) for Container "c" in Pod "p_ns(u)" failed - error: command 'fails -x' exited with 7: err, message: "outerr"`,
		"breaks": `Exec lifecycle hook ([breaks -x]) for Container "c" in Pod "p_ns(u)" failed - error: no runtime, message: ""`,
	} {
		err := r.Run(t.Context(), input(""),
			&v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{command, "-x"}}})
		if got := text(err); got != want {
			t.Errorf("%s: %s", command, cmp.Diff(want, got))
		}
	}
}

// TestLongOutputIsCut: a command may print megabytes, of which a status can show little.
func TestLongOutputIsCut(t *testing.T) {
	for name, test := range map[string]struct{ printed, shown string }{
		"as long as is shown": {strings.Repeat("x", maxOutput), strings.Repeat("x", maxOutput)},
		"longer":              {strings.Repeat("x", maxOutput+1), strings.Repeat("x", maxOutput)},
		"characters":          {"x" + strings.Repeat("é", maxOutput), "x" + strings.Repeat("é", maxOutput/2-1)},
		"no characters":       {strings.Repeat("\x80", 15<<20), strings.Repeat("\x80", maxOutput-utf8.UTFMax)},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newRunner(t, func(string, []string) (string, string, int32, error) {
				return test.printed, test.printed, 7, nil
			})
			err := r.Run(t.Context(), input(""), &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"c"}}})
			want := fmt.Sprintf(`Exec lifecycle hook ([c]) for Container "c" in Pod "p_ns(u)" failed - error: `+
				"command 'c' exited with 7: %s, message: %q", test.shown, test.shown+test.shown)
			if got := text(err); got != want {
				t.Errorf("got %.100s… of %d bytes, want %d", got, len(got), len(want))
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// address returns where a test server listens.
func address(t *testing.T, s *httptest.Server) (host string, port intstr.IntOrString) {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return u.Hostname(), intstr.FromInt(number)
}

func TestHTTPGet(t *testing.T) {
	var seen *http.Request
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Clone(context.Background())
		w.WriteHeader(http.StatusInternalServerError) // of no interest to a hook
	})
	for name, start := range map[string]func(http.Handler) *httptest.Server{
		"HTTP":  httptest.NewServer,
		"HTTPS": httptest.NewTLSServer,
	} {
		t.Run(name, func(t *testing.T) {
			server := start(handler)
			defer server.Close()
			host, port := address(t, server)
			r, events := newRunner(t, nil)
			in := input(host)
			in.Container.Ports = append(in.Container.Ports, v1.ContainerPort{Name: "named", ContainerPort: port.IntVal})
			err := r.Run(t.Context(), in, &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{
				Path: "/echo?a=b", Port: intstr.FromString("named"), Scheme: v1.URIScheme(name),
				HTTPHeaders: []v1.HTTPHeader{{Name: "Host", Value: "example.com"}, {Name: "X-A", Value: "1"},
					{Name: "X-A", Value: "2"}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if seen.Host != "example.com" || seen.RequestURI != "/echo?a=b" ||
				!cmp.Equal(seen.Header["X-A"], []string{"1", "2"}) ||
				seen.UserAgent() != "kube-lifecycle/"+kubeversion.MajorMinor || seen.Header.Get("Accept") != "*/*" {
				t.Fatalf("asked %s %s with %v", seen.Host, seen.RequestURI, seen.Header)
			}
			if len(events.Events) != 0 {
				t.Fatalf("reported %s", <-events.Events)
			}
		})
	}
}

// TestHTTPSFallsBack to HTTP when that is what the server speaks, without credentials.
func TestHTTPSFallsBack(t *testing.T) {
	var asked []http.Header
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter,
		r *http.Request) {
		asked = append(asked, r.Header.Clone())
	}))
	defer server.Close()
	host, port := address(t, server)
	r, events := newRunner(t, nil)
	err := r.Run(t.Context(), input("192.0.2.1"), &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{
		Host:        host,
		Port:        port,
		Scheme:      v1.URISchemeHTTPS,
		HTTPHeaders: []v1.HTTPHeader{{Name: "Authorization", Value: "secret"}},
	}})
	if err != nil || len(asked) != 1 || asked[0].Get("Authorization") != "" {
		t.Fatalf("asked %v, %v", asked, err)
	}
	want := "Warning LifecycleHTTPFallback request to HTTPS lifecycle hook " + net.JoinHostPort(host, port.String()) +
		" got HTTP response, retry with HTTP succeeded"
	if got := <-events.Events; got != want {
		t.Fatal(cmp.Diff(want, got))
	}
	if n := testutil.ToFloat64(r.fallbacks); n != 1 {
		t.Fatalf("counted %v", n)
	}
}

func TestHTTPGetSaysWhatIsWrong(t *testing.T) {
	r, _ := newRunner(t, nil)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := closed.Addr().(*net.TCPAddr).Port
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for want, in := range map[string]struct {
		ip   string
		port intstr.IntOrString
	}{
		`port "nothing" not found`:     {"127.0.0.1", intstr.FromString("nothing")},
		"invalid port number: 0":       {"127.0.0.1", intstr.FromInt(0)},
		"the pod has no address yet":   {"", intstr.FromInt(80)},
		"connect: connection refused":  {"127.0.0.1", intstr.FromInt(port)},
		"HTTP lifecycle hook (/x) for": {"", intstr.FromInt(80)},
	} {
		err := r.Run(t.Context(), input(in.ip),
			&v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Path: "/x", Port: in.port}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func TestRedirectsStayOnTheHost(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter,
		*http.Request) {
		t.Error("followed to another host")
	}))
	defer elsewhere.Close()
	there, err := url.Parse(elsewhere.URL)
	if err != nil {
		t.Fatal(err)
	}
	visits := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		visits++
		if r.URL.Path == "/here" {
			http.Redirect(w, r, "/there", http.StatusFound)
			return
		}
		http.Redirect(w, r, "http://localhost:"+there.Port(), http.StatusFound)
	}))
	defer server.Close()
	host, port := address(t, server)
	r, _ := newRunner(t, nil)
	if err := r.Run(t.Context(), input(host),
		&v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Path: "/here", Port: port}}); err != nil || visits != 2 {
		t.Fatalf("%d visits, %v", visits, err)
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newRunner(t, nil)
		sleep := func(ctx context.Context, seconds int64) (time.Duration, error) {
			began := time.Now()
			err := r.Run(ctx, input(""), &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: seconds}})
			return time.Since(began), err
		}
		for _, seconds := range []int64{0, 5} {
			if took, err := sleep(t.Context(), seconds); err != nil || took != time.Duration(seconds)*time.Second {
				t.Errorf("%d s took %v, %v", seconds, took, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		took, err := sleep(ctx, 5)
		if took != 2*time.Second || err == nil ||
			!strings.HasSuffix(err.Error(), "failed - error: container terminated before sleep hook finished") {
			t.Errorf("took %v, %v", took, err)
		}
		if n := testutil.ToFloat64(r.cutSleeps); n != 1 {
			t.Errorf("counted %v", n)
		}
	})
}

func TestWhatIsNoHookFails(t *testing.T) {
	r, _ := newRunner(t, nil)
	for _, h := range []*v1.LifecycleHandler{{}, {TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt(80)}}} {
		if err := r.Run(t.Context(), input("127.0.0.1"), h); err == nil ||
			!strings.HasPrefix(err.Error(), "Cannot run handler: invalid handler") {
			t.Errorf("%v", err)
		}
	}
}

// TestOrphan: of a pod that no source has any more the annotations are all that is left.
func TestOrphan(t *testing.T) {
	var ran []string
	r, _ := newRunner(t, func(id string, command []string) (string, string, int32, error) {
		ran = append(ran, id+" "+command[0])
		return "", "", 0, nil
	})
	state := &pod.State{Namespace: "ns", Name: "p", UID: "u"}
	for id, handler := range map[string]string{"1": `{"exec":{"command":["bye"]}}`, "2": "broken", "3": ""} {
		c := &pod.Container{ID: id, Name: "c"}
		if handler != "" {
			c.Annotations = map[string]string{pod.AnnotationPreStopHandler: handler}
		}
		r.Orphan(t.Context(), state, c)
	}
	if !cmp.Equal(ran, []string{"1 bye"}) {
		t.Fatalf("ran %q", ran)
	}
}

func TestRestore(t *testing.T) {
	handler := `{"httpGet":{"path":"/bye","port":"web"}}`
	for name, test := range map[string]struct {
		annotations map[string]string
		want        *v1.Container
		broken      bool
	}{
		"none": {},
		"a hook and ports": {
			annotations: map[string]string{
				pod.AnnotationPreStopHandler: handler,
				pod.AnnotationPorts:          `[{"name":"web","containerPort":8080}]`,
			},
			want: &v1.Container{
				Name: "c", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: 8080}},
				Lifecycle: &v1.Lifecycle{
					PreStop: &v1.LifecycleHandler{
						HTTPGet: &v1.HTTPGetAction{Path: "/bye", Port: intstr.FromString("web")},
					},
				},
			},
		},
		"a broken hook": {annotations: map[string]string{pod.AnnotationPreStopHandler: "{"}, broken: true},
		"broken ports": {annotations: map[string]string{pod.AnnotationPreStopHandler: handler, pod.AnnotationPorts: "{"},
			broken: true},
	} {
		r, _ := newRunner(t, nil)
		got, err := r.restore("u", &pod.Container{Name: "c", Annotations: test.annotations})
		if (err != nil) != test.broken || !test.broken && !cmp.Equal(got, test.want) {
			t.Errorf("%s: %v, %s", name, err, cmp.Diff(test.want, got))
		}
	}
}

// TestOrphanWithALongHook: what is too long for an annotation is in a file of the pod, which must be the one that was
// written.
func TestOrphanWithALongHook(t *testing.T) {
	ran := 0
	r, _ := newRunner(t, func(_ string, command []string) (string, string, int32, error) {
		if len(command[1]) == 1<<20 {
			ran++
		}
		return "", "", 0, nil
	})
	r.opts.PodsDir = t.TempDir()
	state := &pod.State{Namespace: "ns", Name: "p", UID: "u"}
	annotations := map[string]string{
		pod.AnnotationPreStopHandler: `{"exec":{"command":["bye","` + strings.Repeat("x", 1<<20) + `"]}}`,
	}
	if err := criconfig.ShortenAnnotations(r.opts.PodsDir, "u", "c", annotations); err != nil {
		t.Fatal(err)
	}
	c := &pod.Container{ID: "id", Name: "c", Annotations: annotations}
	r.Orphan(t.Context(), state, c)
	if ran != 1 {
		t.Fatalf("the hook ran %d times", ran)
	}
	file := filepath.Join(r.opts.PodsDir, "u", "containers", "c", "long-annotations.json")
	for what, change := range map[string]func() error{
		"is another one": func() error { return os.WriteFile(file, []byte(`{}`), 0o600) },
		"is missing":     func() error { return nil },
		"is a link":      func() error { return os.Symlink("/etc/hostname", file) },
	} {
		if err := errors.Join(os.RemoveAll(file), change()); err != nil {
			t.Fatal(err)
		}
		if spec, err := r.restore("u", c); spec != nil || err == nil {
			t.Errorf("a file that %s: %v, %v", what, spec, err)
		}
	}
}
