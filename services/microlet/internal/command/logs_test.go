package command

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
)

// ReadLogs sends the lines, and what comes on the channel while it is followed.
func (u *fakeUp) ReadLogs(r *supervisorv1.ReadLogsRequest,
	to grpc.ServerStreamingServer[supervisorv1.ReadLogsResponse]) error {
	u.mu.Lock()
	u.asked = r
	u.mu.Unlock()
	if r.GetProcess() == "stats" {
		return status.Error(codes.NotFound, `"stats" does not run on this node`)
	}
	if r.GetWord() == "absent" {
		return nil
	}
	lines := [][]byte{[]byte("one\t\x1b[2J\xff"), []byte("two")}
	if err := to.Send(&supervisorv1.ReadLogsResponse{Lines: lines}); err != nil || !r.GetFollow() {
		return err
	}
	for {
		select {
		case line, ok := <-u.lines:
			if !ok {
				return nil
			}
			if err := to.Send(&supervisorv1.ReadLogsResponse{Lines: [][]byte{[]byte(line)}, Missed: true}); err != nil {
				return err
			}
		case <-to.Context().Done():
			return nil
		}
	}
}

func TestLogs(t *testing.T) {
	u := &fakeUp{}
	dir := u.serve(t)
	out, err := execute(t, "logs", "prober.1", "--tail=5", "--pod=web", "--runtime-dir="+dir)
	if err != nil || out != "one\t\ufffd[2J\ufffd\ntwo\n" {
		t.Errorf("%v, %q", err, out)
	}
	if r, _ := u.got(); r.GetProcess() != "prober.1" || r.GetTail() != 5 || r.GetWord() != "web" || r.GetFollow() {
		t.Errorf("asked %v", r)
	}
	_, err = execute(t, "logs", "--runtime-dir="+dir)
	if r, _ := u.got(); err != nil || r.GetTail() != -1 {
		t.Errorf("%v, asked %v", err, r)
	}
	out, err = executeAll(t, []string{"logs", "--pod=absent", "--runtime-dir=" + dir})
	if err != nil || !strings.HasPrefix(out, "none of the newest lines names pod absent; see") {
		t.Errorf("%v, %q", err, out)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"logs", "stats", "--runtime-dir=" + dir}, `"stats" does not run on this node`},
		{[]string{"logs", "kubelet"}, `"kubelet" is no service: name one of bus`},
		{[]string{"logs", "bus", "pleg"}, `"pleg" is one too many`},
		{[]string{"logs", "--tail=-2"}, "tail is -2: give a number of lines, or -1 for all"},
		{[]string{"logs", "--tail=many"}, "--tail=many: the value does not fit: write a whole number"},
		{[]string{"logs", "--runtime-dir=" + t.TempDir()}, "microlet up is not running"},
	} {
		if got := refused(t, c.args...); !strings.Contains(got, c.want) {
			t.Errorf("%q: %s", c.args, got)
		}
	}
}

func TestLogsSince(t *testing.T) {
	var out strings.Builder
	n := &newer{to: &out, than: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
	shown, err := n.write(&supervisorv1.ReadLogsResponse{Lines: [][]byte{
		[]byte("of a line that is gone"), []byte("time=2026-01-01T11:59:59.999Z level=INFO msg=old"), []byte("  of old"),
		[]byte("time=2026-01-01T13:30:00+01:00 level=INFO msg=new"), []byte("  of new"),
		[]byte(`{"time":"2026-01-01T11:00:00Z","msg":"old"}`), []byte(`{"time":"2026-01-01T12:00:00Z","msg":"new"}`),
		[]byte("time=never"),
	}})
	want := "time=2026-01-01T13:30:00+01:00 level=INFO msg=new\n  of new\n" +
		`{"time":"2026-01-01T12:00:00Z","msg":"new"}` + "\ntime=never\n"
	if err != nil || shown != 4 || out.String() != want {
		t.Errorf("%d, %v\n%s", shown, err, &out)
	}
	dir := (&fakeUp{}).serve(t)
	if out, err := execute(t, "logs", "--since=1m", "--runtime-dir="+dir); err != nil ||
		!strings.HasPrefix(out, "no line is newer than 1m0s") {
		t.Errorf("%v, %q", err, out)
	}
}

func TestFollowLogs(t *testing.T) {
	u := &fakeUp{lines: make(chan string)}
	dir := u.serve(t)
	out, cancel := start(t, "logs", "-f", "--runtime-dir="+dir)
	u.lines <- "three"
	await(t, "the next line", func() bool {
		return strings.HasSuffix(out.String(), "two\n(lines are missing here: they came faster than they were read)\nthree\n")
	})
	if err := cancel(); err != nil {
		t.Error(err)
	}
	close(u.lines)
	if got := refused(t, "logs", "-f", "--runtime-dir="+dir); !strings.Contains(got, "microlet up has ended") {
		t.Error(got)
	}
}
