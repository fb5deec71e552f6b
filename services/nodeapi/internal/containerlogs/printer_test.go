package containerlogs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/logs"

	"github.com/microlet/microlet/services/internal/crilog"
)

// entry is a line as runtimes write it, at a second of a minute.
func entry(second, stream, tag, text string) string {
	return "2026-01-02T03:04:" + second + ".000000006Z " + stream + " " + tag + " " + text + "\n"
}

// FuzzPrintsAsTheKubelet compares what is printed with what the library prints that the kubelet uses. Lines may be
// longer than a piece.
func FuzzPrintsAsTheKubelet(f *testing.F) {
	long := strings.Repeat("x", 3*crilog.MaxLine)
	docker := `{"log":"one\n","stream":"stdout","time":"2026-01-02T03:04:05Z"}` + "\n"
	for _, log := range []string{
		"", "no log\n", "\n", entry("05", "stdout", "F", "one"), strings.Repeat(entry("05", "stdout", "F", "one"), 1000),
		entry("05", "stdout", "F", "one") + entry("06", "stderr", "F", "two") + entry("07", "stdout", "F", "three"),
		entry("05", "stdout", "P", "on") + entry("05", "stdout", "F", "e") + entry("06", "stdout", "F:x", "two"),
		entry("05", "stdout", "P", "on") + entry("05", "stderr", "F", "") + entry("06", "stdout", "F", "e"),
		entry("05", "stdout", "P", "") + entry("06", "stdout", "F", "one") + "none\n" + entry("07", "stdout", "F", "two"),
		entry("05", "stdout", "F", "one") + strings.TrimSuffix(entry("06", "stdout", "F", "two"), "\n"),
		entry("05", "stdout", "F", long) + entry("06", "stdout", "F", "two"),
		entry("05", "stdout", "F", "one") + entry("06", "stderr", "P", long) + entry("07", "stdout", "F", "three"),
		entry("05", "stdout", "F", "one") + "none " + long + "\n" + entry("07", "stdout", "F", "three"),
		entry("05", "stdout", "F", "one") + strings.TrimSuffix(entry("06", "stdout", "P", long), "\n"),
		docker + docker, docker + entry("05", "stdout", "F", "one"),
		`{"log":"one","stream":"none","time":"2026-01-02T03:04:05Z"}`,
	} {
		for _, tail := range []int64{-1, 0, 1, 2, 500} {
			f.Add(log, tail, int64(0), int64(0), true, true)
		}
		f.Add(log, int64(-1), int64(0), int64(6), true, true)
		f.Add(log, int64(-1), int64(3), int64(0), false, true)
		f.Add(log, int64(-1), int64(crilog.MaxLine+100), int64(0), true, false)
		f.Add(log, int64(2), int64(50), int64(7), true, false)
	}
	f.Fuzz(func(t *testing.T, log string, tail, limit, since int64, timestamps, both bool) {
		folder := t.TempDir()
		path := filepath.Join(folder, "0.log")
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		o, theirs := &v1.PodLogOptions{Timestamps: timestamps}, &logs.LogOptions{Timestamp: timestamps}
		if tail >= 0 {
			o.TailLines, theirs.TailLines = &tail, &tail
		}
		if limit > 0 {
			o.LimitBytes, theirs.LimitBytes = &limit, &limit
		}
		if since > 0 && since < 60 {
			at := time.Date(2026, 1, 2, 3, 4, int(since), 0, time.UTC)
			o.SinceTime, theirs.Since = &metav1.Time{Time: at}, at
		}
		print := func(how func(stdout, stderr io.Writer) error) (printed []string, failed bool) {
			var stdout, stderr bytes.Buffer
			var second io.Writer // not requested
			if both {
				second = &stderr
			}
			err := how(&stdout, second)
			return []string{stdout.String(), stderr.String()}, err != nil
		}
		want, wantFailed := print(func(stdout, stderr io.Writer) error {
			return logs.ReadLogs(t.Context(), path, "", theirs, nil, stdout, stderr)
		})
		ended := oneContainer{path: path, state: runtimeapi.ContainerState_CONTAINER_EXITED}
		got, failed := print(func(stdout, stderr io.Writer) error {
			return (&Reader{Runtime: ended, Folder: folder}).Read(t.Context(), abc, o, stdout, stderr)
		})
		if !cmp.Equal(got, want) || failed != wantFailed {
			t.Errorf("%.200q\nprinted %.200q, failed: %v\nwant %.200q, failed: %v", log, got, failed, want, wantFailed)
		}
	})
}

// TestALineWithoutAnEnd: a pod that may write to the folder of logs makes a sparse file. A reader that loads it into
// memory takes 64 GiB.
func TestALineWithoutAnEnd(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "0.log")
	if err := errors.Join(os.WriteFile(path, []byte(entry("05", "stdout", "F", "")[:40]), 0o600),
		os.Truncate(path, 64<<30)); err != nil {
		t.Fatal(err)
	}
	r := &Reader{Runtime: oneContainer{path: path, state: runtimeapi.ContainerState_CONTAINER_RUNNING}, Folder: folder}
	for _, follow := range []bool{false, true} {
		var out strings.Builder
		o := &v1.PodLogOptions{LimitBytes: new(int64(3 << 20)), Follow: follow}
		if err := r.Read(t.Context(), abc, o, &out, &out); err != nil {
			t.Error(err)
		}
		if out.String() != strings.Repeat("\x00", 3<<20) {
			t.Errorf("%d bytes: %.100q", out.Len(), out.String())
		}
	}
}

// TestFollowingALongLine, which is shown as it is written, and a log that is rotated in the middle of one.
func TestFollowingALongLine(t *testing.T) {
	folder := t.TempDir()
	r := &lives{path: filepath.Join(folder, "0.log")}
	long := strings.Repeat("x", 3*crilog.MaxLine)
	add := func(text string) {
		t.Helper()
		f, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	add(strings.TrimSuffix(entry("05", "stdout", "F", long), "\n"))
	out := &gathering{rounds: make(chan string)}
	done := make(chan error)
	go func() {
		done <- (&Reader{Runtime: r, Folder: folder}).Read(t.Context(), abc, &v1.PodLogOptions{Follow: true}, out,
			out)
	}()
	var shown strings.Builder
	until := func(what string, enough func(string) bool) {
		t.Helper()
		for !enough(shown.String()) {
			select {
			case more := <-out.rounds:
				shown.WriteString(more)
			case <-time.After(time.Minute):
				t.Fatalf("%s: %d bytes are shown", what, shown.Len())
			}
		}
	}
	until("a line that has no end yet", func(s string) bool { return len(s) > crilog.MaxLine })
	add("y\n" + entry("06", "stdout", "F", "two"))
	until("its end", func(s string) bool { return s == long+"y\ntwo\n" })
	shown.Reset()
	add(strings.TrimSuffix(entry("07", "stdout", "F", long), "\n"))
	until("another one", func(s string) bool { return len(s) > crilog.MaxLine })
	if err := os.Rename(r.path, r.path+".20260102"); err != nil {
		t.Fatal(err)
	}
	add(entry("08", "stdout", "F", "of the next file"))
	until("the next file", func(s string) bool { return strings.HasSuffix(s, "xof the next file\n") })
	r.ended.Store(true)
	for {
		select {
		case <-out.rounds: // it may be in a round of its own
			continue
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("the container has ended, and its log is still followed")
		}
		return
	}
}
