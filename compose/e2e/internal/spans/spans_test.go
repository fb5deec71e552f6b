package spans

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// start is a whole trace of a pod's start.
func start() Trace {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	podsync := map[string]string{"process.pid": "7"}
	return Trace{
		{Service: "podsync", Name: Sync, Trace: "t", ID: "1", Start: at(1), Resource: podsync,
			Attributes: map[string]string{KindOfPod: "u"}},
		{Service: "podsync", Name: "CreateContainer", Kind: "client", Trace: "t", ID: "2", Parent: "1", Start: at(2),
			Resource: podsync},
		{Service: "containerd", Name: "CreateContainer", Kind: "server", Trace: "t", ID: "3", Parent: "2", Start: at(3)},
		{Service: "containerd", Name: "inner", Kind: "internal", Trace: "t", ID: "4", Parent: "3", Start: at(3)},
		{Service: "prober", Name: Probe, Kind: "internal", Trace: "t", ID: "5", Parent: "1", Start: at(4)},
		{Service: "prober", Name: "ExecSync", Kind: "client", Trace: "t", ID: "6", Parent: "5", Start: at(5)},
		{Service: "podsync", Name: "ExecSync", Kind: "server", Trace: "t", ID: "7", Parent: "6", Start: at(6),
			Resource: podsync},
		{Service: "nodestatus", Name: Delivery, Kind: "internal", Trace: "t", ID: "8", Parent: "1", Start: at(7)},
	}
}

func TestATraceThatIsRight(t *testing.T) {
	s := start()
	if wrong, orphans := s.Wrong(), s.Orphans(); len(wrong) != 0 || len(orphans) != 0 {
		t.Errorf("wrong: %q, orphans: %v", wrong, orphans)
	}
	p := s.Processes()
	if len(p) != 4 || p["podsync 7"] != 3 || p["containerd"] != 2 || len(s.Of("prober", "")) != 2 ||
		len(s.Of("", Delivery)) != 1 {
		t.Errorf("processes: %v", p)
	}
}

func TestWhatIsWrongIsFound(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(Trace)
		want  string
	}{
		"another begin":            {func(s Trace) { s[4].Parent = "" }, "it begins 2 times"},
		"before its parent":        {func(s Trace) { s[2].Start = time.UnixMilli(0) }, "is before"},
		"a call in no call":        {func(s Trace) { s[2].Parent = "1" }, "is called in"},
		"a call of a wrong caller": {func(s Trace) { s[2].Parent = "6" }, "is called in"},
		"a stranger's child":       {func(s Trace) { s[3].Parent = "1" }, "is of another service than"},
		"a probe of no sync":       {func(s Trace) { s[4].Parent = "2" }, "is in CreateContainer"},
	} {
		s := start()
		test.spoil(s)
		if got := strings.Join(s.Wrong(), "; "); !strings.Contains(got, test.want) {
			t.Errorf("%s: found %q", name, got)
		}
	}
	s := start()
	s[5].Parent = "gone"
	if got := s.Orphans(); len(got) != 1 || got[0].ID != "6" {
		t.Errorf("orphans: %v", got)
	}
}

func TestReadTakesWhatIsWholeOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spans")
	if got, err := Read(file); err != nil || len(got) != 0 {
		t.Errorf("a file that is not yet there: %v, %v", got, err)
	}
	const ofPod = `{"name":"syncPod","id":"1","attributes":{"k8s.pod.uid":"u"},`
	line := ofPod + `"trace":"t"}` + "\n"
	again := ofPod + `"trace":"u","start":"2026-01-01T00:00:00Z"}` + "\n"
	if err := os.WriteFile(file, []byte(line+again+line+`{"na`), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Read(file)
	if err != nil || len(got) != 2 {
		t.Fatalf("read %+v, %v", got, err)
	}
	if of := OfPod(got, "u"); len(of) != 2 || of[0][0].Trace != "t" || len(OfPod(got, "v")) != 0 {
		t.Errorf("traces of the pod: %v", of)
	}
	if err := os.WriteFile(file, []byte("{]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(file); err == nil {
		t.Error("a line that is none is taken")
	}
}
