package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// readers is a client of the podresources API.
func (a *agent) readers() podresourcesv1.PodResourcesListerClient {
	a.t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(a.dir, "root", "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = conn.Close() })
	return podresourcesv1.NewPodResourcesListerClient(conn)
}

// TestAServiceOnDemand: resources has no process until something connects to it, is kept from then on, and its sockets
// outlive it.
func TestAServiceOnDemand(t *testing.T) {
	a := newAgent(t)
	a.start()
	rows := a.await("all services but the one that is not needed", func(rows map[string]row) bool {
		return ready(rows) && rows["resources"].State == "on demand"
	})
	if r := rows["resources"]; r.PID != 0 || r.HeartbeatAgeSeconds != nil {
		t.Errorf("resources is not needed, and is %+v", r)
	}
	if _, err := os.Stat(filepath.Join(a.runtimeDir(), "sock", "resources", "metrics.sock")); !os.IsNotExist(err) {
		t.Errorf("a process of resources was there: %v", err)
	}
	if out, err := proctest.Command(t.Context(), "status", "--exit-code", "--runtime-dir="+a.runtimeDir()).
		CombinedOutput(); err != nil {
		t.Errorf("status --exit-code: %v\n%s", err, out)
	}

	socket := filepath.Join(a.devicePlugins(), "kubelet.sock")
	made, err := os.Lstat(socket)
	if err != nil {
		t.Fatal(err)
	}
	readers := a.readers()
	if _, err := readers.List(t.Context(), &podresourcesv1.ListPodResourcesRequest{}); err != nil {
		t.Fatal(err)
	}
	rows = a.await("resources", func(rows map[string]row) bool { return rows["resources"].State == "ready" })
	pid := rows["resources"].PID
	id, err := role.Get(role.Resources)
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{
		"CapEff": capabilityMask(t, id.Capabilities), "CapBnd": capabilityMask(t, id.Capabilities), "NoNewPrivs": "1",
		"Uid": "47109 47109 47109 47109", "Gid": "47100 47100 47100 47100", "Groups": "",
	} {
		if got := procStatus(t, pid, field); got != want {
			t.Errorf("%s of resources is %q, want %q", field, got, want)
		}
	}

	// Its capability would open the runtime's socket.
	if info, err := os.Stat(fmt.Sprintf("/proc/%d/root/%s/runtime.sock", pid, a.dir)); err != nil ||
		info.Mode()&os.ModeSocket != 0 {
		t.Errorf("resources sees the runtime's socket as %v: %v", info, err)
	}
	if pods, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/%s/root/pods", pid, a.dir)); err != nil || len(pods) != 0 {
		t.Errorf("resources sees %v in the folder of pods: %v", pods, err)
	}

	// A plugin notices nothing of a restart: its own socket and that of its registration stay what they are.
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	a.await("the successor", func(rows map[string]row) bool {
		return rows["resources"].State == "ready" && rows["resources"].PID != pid && rows["resources"].Restarts == 1
	})
	_, err = readers.List(t.Context(), &podresourcesv1.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	now, err := os.Lstat(socket)
	if err != nil || !os.SameFile(made, now) {
		t.Errorf("the socket on which plugins register was replaced: %v", err)
	}
	a.stop()
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("after the end the socket is still there: %v", err)
	}
}

// TestAServiceThatHasSomethingToDo: pods have devices from before, so resources connects to their plugins.
func TestAServiceThatHasSomethingToDo(t *testing.T) {
	a := newAgent(t)
	if err := os.MkdirAll(a.devicePlugins(), 0o750); err != nil {
		t.Fatal(err)
	}
	// The checksum is wrong, so that it is set aside: what it says is for the process alone.
	const checkpoint = `{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"example.com/a":["1"]}},"Checksum":1}`
	file := filepath.Join(a.devicePlugins(), "kubelet_internal_checkpoint")
	if err := os.WriteFile(file, []byte(checkpoint), 0o600); err != nil {
		t.Fatal(err)
	}
	a.start()
	a.await("resources", func(rows map[string]row) bool { return rows["resources"].State == "ready" })
	a.Await(patience, "the file that was set aside", func() bool {
		files, _ := filepath.Glob(file + "?*")
		for _, f := range files {
			if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), "example.com/a") {
				return true
			}
		}
		return false
	})
	a.stop()
}
