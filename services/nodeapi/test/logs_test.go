package test

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/openlog"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// ofCRIO gives the node a runtime with the manners of CRI-O, and the logs of "ns/p" the folders that podsync makes.
func (e *testNode) ofCRIO() {
	e.t.Helper()
	e.crio = true
	e.runtime.ActAsCRIO()
	folder := filepath.Join(e.kubelet().PodLogsDir, "p")
	if err := errors.Join(os.Mkdir(folder, 0o750), os.Chown(folder, 0, role.GroupLogs),
		os.Chmod(folder, 0o750|fs.ModeSetgid)); err != nil {
		e.t.Fatal(err)
	}
}

// startLogs opens logs as podsync does.
func (e *testNode) startLogs() (stop func()) {
	e.t.Helper()
	l, err := unixgrpc.Listen(e.config.Service.LogsSocket(), 0o660, role.GroupNode)
	if err != nil {
		e.t.Fatal(err)
	}
	s := &openlog.Server{
		Folder: e.kubelet().PodLogsDir, Peers: e.config.Service.Peers(), Log: slog.New(slog.DiscardHandler),
		Count: func(string) {},
		Path: func(ctx context.Context, id string) (string, error) {
			answer, err := e.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
			return answer.GetStatus().GetLogPath(), err
		},
	}
	return e.Run(func(ctx context.Context) error { return s.Run(ctx, l) })
}

// startAsItsUser starts nodeapi as a process with the user and groups that "microlet up" gives it.
func (e *testNode) startAsItsUser() (kill func()) {
	e.t.Helper()
	args := e.arguments()
	id, err := role.Get(role.NodeAPI)
	if err != nil {
		e.t.Fatal(err)
	}
	give := func(path string, d fs.DirEntry, err error) error {
		if err == nil && path == e.kubelet().PodLogsDir {
			return fs.SkipDir
		}
		return errors.Join(err, os.Lchown(path, id.UID, role.GroupNode))
	}
	if err := errors.Join(filepath.WalkDir(e.Dir(), give), filepath.WalkDir(e.dir, give),
		os.Chmod(filepath.Dir(e.dir), 0o755)); err != nil {
		e.t.Fatal(err)
	}
	cmd := proctest.Command(context.Background(), args...)
	cmd.Dir, cmd.Stderr = "/", e.t.Output()
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(id.UID), Gid: uint32(id.GID),
		Groups: []uint32{role.GroupLogs}}
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	e.t.Cleanup(kill)
	e.awaitPorts()
	return kill
}

// writer is the container of "ns/p", with its log.
type writer struct {
	e       *testNode
	id, log string
}

func (e *testNode) writer() writer {
	e.t.Helper()
	return writer{e, e.containerID("p"), filepath.Join(e.kubelet().PodLogsDir, "p", "c.log")}
}

func (w writer) write(line string) {
	w.e.t.Helper()
	if err := w.e.runtime.WriteLog(w.id, line); err != nil {
		w.e.t.Fatal(err)
	}
}

// reopen has the runtime begin another file.
func (w writer) reopen() {
	w.e.t.Helper()
	if _, err := w.e.runtime.ReopenContainerLog(w.e.t.Context(),
		&runtimeapi.ReopenContainerLogRequest{ContainerId: w.id}); err != nil {
		w.e.t.Fatal(err)
	}
}

// TestLogsOfRootAlone has a runtime that gives its logs to root alone, also those that follow a rotation.
func TestLogsOfRootAlone(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.ofCRIO()
	e.startPeers()
	stopLogs := e.startLogs()
	e.startAsItsUser()
	jane, w := e.user("jane get_proxy"), e.writer()
	jane.awaitGet(30*time.Second, "/containerLogs/ns/p/c", 200)
	expect(t, soon, "the log", func() (int, string) { return jane.get("/containerLogs/ns/p/c") }, 200, "one\n")
	answer, err := jane.do(http.MethodGet, "/containerLogs/ns/p/c?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	follows := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("the log goes on with %q, %v; want %q", lines.Text(), lines.Err(), want)
		}
	}
	follows("one")
	w.write("two")
	follows("two")
	if err := os.Rename(w.log, w.log+".20260101-000000"); err != nil {
		t.Fatal(err)
	}
	w.reopen()
	w.write("three")
	follows("three")

	t.Log("the runtime begins another file while podsync is away")
	stopLogs()
	w.reopen()
	w.write("four")
	e.startLogs()
	if err := os.Chown(e.config.Service.LogsSocket(), 47108, -1); err != nil {
		t.Fatal(err)
	}
	follows("four")
	if err := e.runtime.ExitContainer(w.id, 0); err != nil {
		t.Fatal(err)
	}
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("after the container's end the log goes on: %q, %v", lines.Text(), lines.Err())
	}
}

// TestLogsOfRootAloneThatHaveEnded reads the log of a container that has ended, as of the instance before, and what a
// pod puts in its place.
func TestLogsOfRootAloneThatHaveEnded(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.ofCRIO()
	e.startPeers()
	e.startLogs()
	e.startAsItsUser()
	jane, w := e.user("jane get_proxy"), e.writer()
	jane.awaitGet(30*time.Second, "/containerLogs/ns/p/c", 200)
	if err := e.runtime.ExitContainer(w.id, 0); err != nil {
		t.Fatal(err)
	}
	log := func() (int, string) { return jane.get("/containerLogs/ns/p/c?tailLines=1") }
	expect(t, soon, "the log of a container that has ended", log, 200, "one\n")
	e.putPrevious("p", w.id)
	proctest.Await(t, slack, "the log of the instance before is shown", func() bool {
		code, body := jane.get("/containerLogs/ns/p/c?previous=true")
		return code == 200 && body == "one\n"
	})
	secret := filepath.Join(e.dir, "secret")
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600), os.Remove(w.log),
		os.Symlink(secret, w.log)); err != nil {
		t.Fatal(err)
	}
	expect(t, soon, "a log that became a link", log, 200, "not a regular file")
}

// containerID is that of the container of a pod.
func (e *testNode) containerID(pod string) string {
	e.t.Helper()
	list, err := e.runtime.ListContainers(e.t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": pod}}})
	if err != nil || len(list.GetContainers()) != 1 {
		e.t.Fatalf("containers of pod %s: %v, %v", pod, list, err)
	}
	return list.GetContainers()[0].GetId()
}

// putPrevious says on the bus that the container is the one before of the pod's.
func (e *testNode) putPrevious(pod, id string) {
	e.t.Helper()
	status := v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{
		Name:  "c",
		State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: v1.ContainerState{
			Terminated: &v1.ContainerStateTerminated{ContainerID: "cri-o://" + id},
		},
	}}}
	data, err := status.Marshal()
	if err != nil {
		e.t.Fatal(err)
	}
	e.status.Put(subject.PodKey(pod+"-uid"), &podsyncv1.PodStatus{Status: data})
}
