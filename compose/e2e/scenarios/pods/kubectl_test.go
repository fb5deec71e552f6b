package pods

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// refuses runs the client, which must fail and say why.
func refuses(s *scene.Scene, want string, args ...string) {
	s.T.Helper()
	if out, problems, err := s.RunKubectl(nil, args...); err == nil || !strings.Contains(problems, want) {
		s.T.Errorf("kubectl %s: %v, %q, %q; want the message %q", strings.Join(args, " "), err, out, problems, want)
	}
}

// TestNodeAPI is what people and the control plane ask of a node, by the real client through the real
// apiserver.
func TestNodeAPI(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	talks(s)
	askNodeAPI(s, t)
	askForRootsLog(s)
	askPodsAPI(s)
}

// askForRootsLog gives a log to root alone, as CRI-O does with all of them, and asks for it.
func askForRootsLog(s *scene.Scene) {
	s.T.Helper()
	const container = "main"
	pod := s.Record.View().Pod(s.Namespace, "talk")
	if pod == nil {
		s.T.Fatal("no pod talk")
	}
	log := filepath.Join(s.PodLogsDir(), fmt.Sprintf("%s_talk_%s", s.Namespace, pod.UID), container, "0.log")
	var err error
	if s.OnMachine() {
		_, err = s.RunOnMachine(s.T.Context(), "chmod", "0600", log)
	} else {
		err = os.Chmod(log, 0o600)
	}
	if err != nil {
		s.T.Fatal(err)
	}
	s.KubectlPrints("first\nsecond\n", "logs", "talk", "-c", container)
}

// talks starts the pod that has the containers of askNodeAPI.
func talks(s *scene.Scene) {
	s.T.Helper()
	talk := scene.ScriptPod("talk", `echo first; echo second; `+scene.Forever)
	web := scene.ShellContainer("web", `mkdir -p /tmp/www; cp /bin/busybox /tmp/www/file; httpd -f -p 8080 -h /tmp/www`)
	web.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 5, ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/file", Port: intstr.FromInt32(8080)},
	}}
	// The order of lines of different streams is not defined, because the runtime copies two pipes.
	talk.Spec.Containers = append(talk.Spec.Containers, scene.ShellContainer("again", `echo life; exit 1`), web,
		scene.ShellContainer("complains", `echo problem >&2; `+scene.Forever))
	s.CreatePods(talk)
	s.Wait(scene.Patience, "a container to have been restarted, and the web server", func(v record.View) error {
		restarted, serves := false, false
		for _, c := range s.ContainerStatuses(v, "talk") {
			restarted = restarted || c.Name == "again" && c.RestartCount > 0
			serves = serves || c.Name == "web" && c.Ready
		}
		if !restarted || !serves {
			return fmt.Errorf("restarted %t, serves %t", restarted, serves)
		}
		return nil
	})
}

// askNodeAPI asks the node's API for all that it has, with the pod of talks.
func askNodeAPI(s *scene.Scene, t *testing.T) {
	t.Helper()
	const first = "main"
	// A container that runs may not have written yet.
	s.KubectlComesToPrint("first\nsecond\n", "logs", "talk", "-c", first)
	s.KubectlComesToPrint("problem\n", "logs", "talk", "-c", "complains")
	s.KubectlComesToPrint("life\n", "logs", "talk", "-c", "again", "--previous")
	if out, problems, err := s.RunKubectl(nil, "logs", "talk", "-c", first, "--tail=1"); err != nil || out != "second\n" {
		t.Errorf("the last line of the log: %v, %q, %q", err, out, problems)
	}
	refuses(s, "previous terminated container", "logs", "talk", "-c", first, "--previous")
	if out, problems, err := s.RunKubectl(nil, "logs", "talk", "-c", first, "--limit-bytes=4"); err != nil ||
		out != "firs" {
		t.Errorf("the first bytes of the log: %v, %q, %q", err, out, problems)
	}

	for _, how := range []string{"true", "false"} { // WebSocket, SPDY
		t.Setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", how)
		t.Setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", how)
		blob := make([]byte, 2<<20)
		if _, err := rand.Read(blob); err != nil {
			t.Fatal(err)
		}
		out, problems, err := s.RunKubectl(bytes.NewReader(blob), "exec", "-i", "talk", "-c", first, "--", "cat")
		if err != nil || out != string(blob) {
			t.Errorf("exec, WebSocket %s: %d of %d bytes came back: %v %s", how, len(out), len(blob), err, problems)
		}
		if _, problems, err := s.RunKubectl(nil, "exec", "talk", "-c", first, "--", "sh", "-c",
			"echo oops >&2; exit 7"); err == nil || !strings.Contains(problems, "oops") ||
			!strings.Contains(problems, "exit code 7") {
			t.Errorf("exec, WebSocket %s: %v, %q", how, err, problems)
		}
		forward(s, t, how)
	}

	local := filepath.Join(t.TempDir(), "blob")
	if err := os.WriteFile(local, []byte("copied"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.KubectlPrints("", "cp", local, s.Namespace+"/talk:/tmp/blob", "-c", first)
	s.KubectlPrints("copied", "exec", "talk", "-c", first, "--", "cat", "/tmp/blob")

	proxy := "/api/v1/nodes/" + s.Node.NodeName() + "/proxy"
	for path, want := range map[string]string{
		"/pods":                `"name":"talk"`,
		"/runningpods/":        `"name":"talk"`,
		"/configz":             `"kubeletconfig"`,
		"/healthz":             "ok",
		"/healthz/pleg":        "ok",
		"/metrics":             "kubelet_runtime_operations_total",
		"/statusz":             "kubelet statusz",
		"/flagz":               "hostname-override=" + s.Node.NodeName(),
		"/logs/":               "<a href=",
		"/debug/pprof/cmdline": scene.CommandOf(role.Podsync),
	} {
		s.KubectlPrints(want, "get", "--raw", proxy+path)
	}
	for path, want := range map[string]string{
		"/stats/summary": `"name":"talk"`,
		"/stats/summary?only_cpu_and_memory=true": `"name":"talk"`,
		"/metrics/resource":                       `pod_memory_working_set_bytes{namespace="` + s.Namespace + `",pod="talk"}`,
		"/metrics/cadvisor":                       `pod="talk"`,
	} {
		s.KubectlComesToPrint(want, "get", "--raw", proxy+path)
	}
	strangers(s, t)
}

// forward fetches a file through a forwarded port and compares it with the same bytes by exec.
func forward(s *scene.Scene, t *testing.T, how string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scene.Patience)
	defer cancel()
	address, end := s.PortForward(ctx, t, "talk", 8080)
	defer func() { cancel(); _ = end() }()
	var body []byte
	scene.Await(t, scene.Patience, "the forwarded port to answer", func() error {
		answer, err := http.Get("http://" + address + "/file")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err = io.ReadAll(answer.Body)
		return err
	})
	want, problems, err := s.RunKubectl(nil, "exec", "talk", "-c", "web", "--", "cat", "/tmp/www/file")
	if err != nil || len(body) < 1<<20 || string(body) != want {
		t.Errorf("port-forward, WebSocket %s: %d bytes, by exec %d: %v %s", how, len(body), len(want), err, problems)
	}
}

// strangers go to the port itself.
func strangers(s *scene.Scene, t *testing.T) {
	t.Helper()
	client := &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	defer client.CloseIdleConnections()
	account, problems, err := s.RunKubectl(nil, "create", "token", "default")
	if err != nil {
		t.Fatal(err, problems)
	}
	base := "https://" + net.JoinHostPort(s.Node.NodeIP(), "10250")
	for _, path := range []string{"/pods", "/metrics", "/exec/a/b/c", "/nosuch", "/healthz", "/logs/"} {
		for token, want := range map[string]int{"": 401, "wrong": 401, strings.TrimSpace(account): 403} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(answer.Body)
			if err := answer.Body.Close(); err != nil {
				t.Error(err)
			}
			if answer.StatusCode != want {
				t.Errorf("%s with %d characters of token: %d %s, want %d", path, len(token), answer.StatusCode, body,
					want)
			}
		}
	}
}
