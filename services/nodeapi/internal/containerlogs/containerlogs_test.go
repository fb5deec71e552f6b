package containerlogs

import (
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

func TestParseOptions(t *testing.T) {
	for _, test := range []struct {
		query, want string // want is part of the error; none when empty
		invalid     bool
		check       func(o *v1.PodLogOptions) bool
	}{
		{query: "", check: func(o *v1.PodLogOptions) bool { return o.TailLines == nil && !o.Follow && o.Stream == nil }},
		{query: "follow=true&previous=1&timestamps",
			check: func(o *v1.PodLogOptions) bool { return o.Follow && o.Previous && o.Timestamps }},
		{query: "follow=false&previous=0", check: func(o *v1.PodLogOptions) bool { return !o.Follow && !o.Previous }},
		{query: "tailLines=3&limitBytes=4&sinceSeconds=5", check: func(o *v1.PodLogOptions) bool {
			return *o.TailLines == 3 && *o.LimitBytes == 4 && *o.SinceSeconds == 5
		}},
		{query: "tail=7&tailLines=3", check: func(o *v1.PodLogOptions) bool { return *o.TailLines == 7 }},
		{query: "tail=all&tailLines=3", check: func(o *v1.PodLogOptions) bool { return o.TailLines == nil }},
		{query: "tailLines=0", check: func(o *v1.PodLogOptions) bool { return *o.TailLines == 0 }},
		{query: "sinceTime=2026-01-02T03:04:05Z", check: func(o *v1.PodLogOptions) bool {
			return o.SinceTime.Equal(&metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)})
		}},
		{query: "tailLines=many", want: "give a whole number"},
		{query: "limitBytes=99999999999999999999", want: "give a whole number"},
		{query: "sinceTime=now", want: "RFC 3339"},
		{query: "tailLines=-1", want: "tailLines must not be negative", invalid: true},
		{query: "limitBytes=0", want: "limitBytes must be positive", invalid: true},
		{query: "sinceSeconds=0", want: "sinceSeconds must be positive", invalid: true},
		{query: "sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z", want: "must not both be given", invalid: true},
		{query: "stream=Both", want: "stream must be", invalid: true},
		{query: "stream=Stdout&tailLines=1", want: "must not both be given", invalid: true},
	} {
		values, err := url.ParseQuery(test.query)
		if err != nil {
			t.Fatal(err)
		}
		o, err := ParseOptions(values)
		switch {
		case test.want != "":
			if err == nil || !strings.Contains(err.Error(), test.want) || errors.Is(err, ErrInvalid) != test.invalid {
				t.Errorf("%s: %v, want %q", test.query, err, test.want)
			}
		case err != nil || !test.check(o):
			t.Errorf("%s: %+v, %v", test.query, o, err)
		}
	}
}

func FuzzParseOptions(f *testing.F) {
	f.Add("tailLines=1&follow&sinceTime=2026-01-02T03:04:05Z&stream=All")
	f.Fuzz(func(t *testing.T, raw string) {
		values, _ := url.ParseQuery(raw)
		o, err := ParseOptions(values)
		if err != nil {
			return
		}
		if o.TailLines != nil && *o.TailLines < 0 || o.LimitBytes != nil && *o.LimitBytes < 1 ||
			o.SinceSeconds != nil && *o.SinceSeconds < 1 {
			t.Errorf("%q passes: %+v", raw, o)
		}
	})
}

func TestWhichContainerIsMeant(t *testing.T) {
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	ended := func(id string) v1.ContainerState {
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: id}}
	}
	waiting := func(reason string) v1.ContainerState {
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
	}
	for _, test := range []struct {
		name        string
		state, last v1.ContainerState
		previous    bool
		id, err     string
	}{
		{"running", running, v1.ContainerState{}, false, "r://now", ""},
		{"running again", running, ended("r://before"), false, "r://now", ""},
		{"the one before", running, ended("r://before"), true, "r://before", ""},
		{"no one before", running, v1.ContainerState{}, true, "", `previous terminated container "c" in pod "p" not found`},
		{"one before without an id", running, ended(""), true, "", `previous terminated container "c" in pod "p" not found`},
		{"ended", ended("r://now"), v1.ContainerState{}, false, "r://now", ""},
		{"ended without having run", ended(""), ended("r://before"), false, "r://before", ""},
		{"never ran", ended(""), v1.ContainerState{}, false, "", `container "c" in pod "p" is terminated`},
		{"in back-off", waiting("CrashLoopBackOff"), ended("r://before"), false, "r://before", ""},
		{"in back-off without an id", waiting("CrashLoopBackOff"), ended(""), false, "",
			`container "c" in pod "p" is terminated`},
		{"being made", waiting("ContainerCreating"), v1.ContainerState{}, false, "",
			`container "c" in pod "p" is waiting to start: ContainerCreating`},
		{"no image", waiting("ErrImagePull"), v1.ContainerState{}, false, "",
			`container "c" in pod "p" is waiting to start: image can't be pulled`},
		{"still no image", waiting("ImagePullBackOff"), v1.ContainerState{}, false, "",
			`container "c" in pod "p" is waiting to start: trying and failing to pull image`},
		{"unknown", v1.ContainerState{}, v1.ContainerState{}, false, "",
			`container "c" in pod "p" is waiting to start - no logs yet`},
	} {
		s := v1.ContainerStatus{Name: "c", ContainerID: "r://now", State: test.state, LastTerminationState: test.last}
		for _, list := range []func(*v1.PodStatus){
			func(p *v1.PodStatus) { p.ContainerStatuses = []v1.ContainerStatus{{Name: "x"}, s} },
			func(p *v1.PodStatus) { p.InitContainerStatuses = []v1.ContainerStatus{s} },
			func(p *v1.PodStatus) { p.EphemeralContainerStatuses = []v1.ContainerStatus{s} },
		} {
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
			list(&p.Status)
			id, err := ID(p, "c", test.previous)
			if id != test.id || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Errorf("%s: %q, %v; want %q, %q", test.name, id, err, test.id, test.err)
			}
		}
	}
	if _, err := ID(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, "c", false); err == nil ||
		err.Error() != `container "c" in pod "p" is not available` {
		t.Errorf("a container without status: %v", err)
	}
}

// abc is the container of oneContainer.
var abc = Container{ID: "r://abc"}

// oneContainer is a runtime with one container.
type oneContainer struct {
	path  string
	state runtimeapi.ContainerState
	err   error
}

func (r oneContainer) Status(_ context.Context, id string) (*runtimeapi.ContainerStatusResponse, error) {
	if r.err != nil || id != "abc" {
		return nil, errors.Join(r.err, status.Error(codes.NotFound, "no such container"))
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{LogPath: r.path, State: r.state}},
		nil
}

func TestRead(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "pod", "c", "0.log")
	line := "2026-01-01T00:00:00.000000000Z stdout F one\n"
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(line), 0o644)); err != nil {
		t.Fatal(err)
	}
	ended := runtimeapi.ContainerState_CONTAINER_EXITED
	var out strings.Builder
	if err := (&Reader{Runtime: oneContainer{path: path, state: ended}, Folder: folder}).Read(t.Context(), abc,
		&v1.PodLogOptions{Follow: true}, &out, &out); err != nil || out.String() != "one\n" {
		t.Errorf("following an ended container: %q, %v", out.String(), err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	link := func(name, to string) string {
		l := filepath.Join(folder, name)
		if err := os.Symlink(to, l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	pipe := filepath.Join(folder, "pipe")
	if err := errors.Join(os.WriteFile(secret, []byte(line), 0o644), unix.Mkfifo(pipe, 0o644)); err != nil {
		t.Fatal(err)
	}
	again := filepath.Join(t.TempDir(), "link-to-folder")
	if err := os.Symlink(folder, again); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := (&Reader{Runtime: oneContainer{path: filepath.Join(again, "pod/c/0.log"), state: ended},
		Folder: again}).Read(t.Context(), abc, &v1.PodLogOptions{}, &out, &out); err != nil || out.String() != "one\n" {
		t.Errorf("a folder that is a link: %q, %v", out.String(), err)
	}
	out.Reset()
	for name, test := range map[string]struct {
		runtime oneContainer
		want    string
	}{
		"a link outside":        {oneContainer{path: link("out", secret), state: ended}, "not a regular file"},
		"a link to another log": {oneContainer{path: link("inside", path), state: ended}, "not a regular file"},
		"a link to itself":      {oneContainer{path: link("loop", "loop"), state: ended}, "not a regular file"},
		"a folder that is a link": {oneContainer{path: filepath.Join(link("folder", filepath.Dir(secret)), "secret"),
			state: ended}, "not a directory"},
		"a folder that is a link to another": {oneContainer{path: filepath.Join(link("pods", filepath.Dir(path)), "0.log"),
			state: ended}, "not a directory"},
		"a pipe":           {oneContainer{path: pipe, state: ended}, "not a regular file"},
		"a folder":         {oneContainer{path: filepath.Dir(path), state: ended}, "not a regular file"},
		"outside":          {oneContainer{path: "/etc/passwd", state: ended}, "not below"},
		"outside by dots":  {oneContainer{path: folder + "/../x", state: ended}, "not below"},
		"no file is named": {oneContainer{state: ended}, "no log file"},
		"gone":             {oneContainer{err: errors.New("x")}, "unable to retrieve container logs for r://abc"},
		"removed":          {oneContainer{path: filepath.Join(folder, "gone"), state: ended}, "no such file"},
	} {
		err := (&Reader{Runtime: test.runtime, Folder: folder}).Read(t.Context(), abc, &v1.PodLogOptions{}, &out,
			&out)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if out.Len() > 0 {
		t.Errorf("what is no log was shown: %q", out.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- (&Reader{Runtime: oneContainer{path: path, state: runtimeapi.ContainerState_CONTAINER_RUNNING},
			Folder: folder}).Read(ctx, abc, &v1.PodLogOptions{Follow: true}, &out, &out)
	}()
	cancel()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("a reader that went away is still served")
	}
}

// gone is a reader who has left.
type gone struct{}

func (gone) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestLogsStayOutOfTheLog breaks the reading off, and has lines that are none.
func TestLogsStayOutOfTheLog(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "0.log")
	if err := os.WriteFile(path, []byte("2026-01-01T00:00:00.000000000Z stdout F secret\nno line of a log, and secret\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	ctx := klog.NewContext(t.Context(),
		funcr.New(func(prefix, args string) { said.WriteString(args) }, funcr.Options{}))
	r := Reader{Runtime: oneContainer{path: path, state: runtimeapi.ContainerState_CONTAINER_EXITED}, Folder: folder}
	for name, out := range map[string]io.Writer{"a reader who has left": gone{}, "a line that is none": io.Discard} {
		if err := r.Read(ctx, abc, &v1.PodLogOptions{}, out, out); (err != nil) != (out == gone{}) {
			t.Errorf("%s: %v", name, err)
		}
		if said.Len() > 0 {
			t.Errorf("%s: the pod's log is in this process's: %s", name, said.String())
		}
	}
}
