package checkpoint

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelets is a file that the code of the kubelet 1.37 wrote.
const kubelets = `{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"a/b","DeviceIDs":` +
	`{"-1":["x"],"0":["y"],"1":["y"]},"AllocResp":"CgYKAUESATEaDAoCL2MSAi9oGgJydw=="}],"RegisteredDevices":` +
	`{"a/b":["y","x"],"a/c":[]}},"Checksum":3108365393}`

func write(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, Name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func content() Content {
	return Content{
		Entries: []Entry{
			{Pod: "uid-1", Container: "z", Resource: "a.b/c", Devices: map[string][]int64{"x": {0, 1}, "y": nil, "w": {1}},
				Answer: &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"A": "1", "B": "2", "C": "3"}}},
			{Pod: "uid-1", Container: "a", Resource: "a.b/d", Devices: map[string][]int64{"x": nil},
				Answer: &pluginapi.ContainerAllocateResponse{}},
		},
		Registered: map[string][]string{"a.b/c": {"w", "x", "y"}, "a.b/d": {}},
		Plugins:    []Plugin{{"a.b/c", "/p/c.sock", true}, {"a.b/c", "/p/d.sock", false}},
		Gone:       []types.UID{"uid-1"},
	}
}

func equal(a, b Content) bool {
	if len(a.Entries) != len(b.Entries) {
		return false
	}
	for i := range a.Entries {
		x, y := a.Entries[i], b.Entries[i]
		if !proto.Equal(x.Answer, y.Answer) {
			return false
		}
		x.Answer, y.Answer = nil, nil
		if !reflect.DeepEqual(x, y) {
			return false
		}
	}
	return reflect.DeepEqual(a.Registered, b.Registered) && reflect.DeepEqual(a.Plugins, b.Plugins) &&
		reflect.DeepEqual(a.Gone, b.Gone)
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	dir := t.TempDir()
	f, c, err := Open(dir)
	if err != nil || !equal(c, Content{}) {
		t.Fatalf("without a file: %+v, %v", c, err)
	}
	if err := f.Store(content()); err != nil {
		t.Fatal(err)
	}
	_, c, err = Open(dir)
	if err != nil || !equal(c, content()) {
		t.Errorf("it is read as %+v, %v", c, err)
	}
}

func TestTheKubeletsFile(t *testing.T) {
	dir := write(t, kubelets)
	f, c, err := Open(dir)
	want := Content{
		Entries: []Entry{{Pod: "u", Container: "c", Resource: "a/b", Devices: map[string][]int64{"x": nil, "y": {0, 1}},
			Answer: &pluginapi.ContainerAllocateResponse{
				Envs:    map[string]string{"A": "1"},
				Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/c", HostPath: "/h", Permissions: "rw"}},
			}}},
		Registered: map[string][]string{"a/b": {"y", "x"}, "a/c": {}},
	}
	if err != nil || !equal(c, want) {
		t.Fatalf("it is read as %+v, %v", c, err)
	}
	// What the kubelet reads is written as it was.
	c.Plugins = []Plugin{{"a/b", "/p.sock", false}}
	if err := f.Store(c); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, Name))
	if beside, is := strings.CutPrefix(string(text), strings.TrimSuffix(kubelets, "}")); err != nil || !is ||
		beside != `,"Plugins":[{"ResourceName":"a/b","Endpoint":"/p.sock","PreStartRequired":false}]}` {
		t.Errorf("it is written as %s, %v", text, err)
	}
}

// TestABadEntryIsLeftOut has a file with the checksum that the kubelet gave it.
func TestABadEntryIsLeftOut(t *testing.T) {
	const file = `{"Data":{"PodDeviceEntries":[{"PodUID":"uid","ContainerName":"c","ResourceName":"a.b/c","DeviceIDs":` +
		`{"-1":["b","a"],"0":null},"AllocResp":"AAE="}],"RegisteredDevices":{"a.b/c":["a","b"]}},"Checksum":2024234939}`
	dir := write(t, file)
	_, c, err := Open(dir)
	// The checksum is right, and the answer of that entry is none.
	if err == nil || !strings.Contains(err.Error(), "Data.PodDeviceEntries[0]: AllocResp of pod uid, container c: ") ||
		len(c.Entries) != 0 || len(c.Registered["a.b/c"]) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := os.Stat(filepath.Join(dir, Name)); err != nil {
		t.Errorf("the file is not there any more: %v", err)
	}
}

// TestAnAnswerThatTheKubeletTook: the container runs, so that no other pod may have its devices.
func TestAnAnswerThatTheKubeletTook(t *testing.T) {
	dir := t.TempDir()
	f, _, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := content()
	want.Entries[0].Answer = &pluginapi.ContainerAllocateResponse{
		Envs:        map[string]string{"LONG": strings.Repeat("x", 300<<10)},
		Annotations: map[string]string{"with space": "1"},
		Devices:     []*pluginapi.DeviceSpec{{ContainerPath: "/dev/x", HostPath: "/dev/x", Permissions: "mrwm"}},
	}
	if err := f.Store(want); err != nil {
		t.Fatal(err)
	}
	if _, c, err := Open(dir); err != nil || !equal(c, want) {
		t.Errorf("it has %d entries, %v", len(c.Entries), err)
	}
}

func TestABadFileIsSetAside(t *testing.T) {
	for _, text := range []string{"", "{", `{"Data":{},"Checksum":1}`, `{"Data":{"PodDeviceEntries":1},"Checksum":1}`} {
		dir := write(t, text)
		f, c, err := Open(dir)
		if err == nil || !strings.Contains(err.Error(), "kubelet_internal_checkpoint.bad now: ") || !equal(c, Content{}) {
			t.Errorf("%q: %+v, %v", text, c, err)
		}
		if _, err := os.Stat(filepath.Join(dir, Name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: the file is still there: %v", text, err)
		}
		if err := f.Store(content()); err != nil {
			t.Fatal(err)
		}
		if _, c, err := Open(dir); err != nil || !equal(c, content()) {
			t.Errorf("%q: after that, %+v, %v", text, c, err)
		}
	}
}

func TestFieldsOfALaterVersionStay(t *testing.T) {
	dir := t.TempDir()
	f, _, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	f.inside = map[string]json.RawMessage{"Later": json.RawMessage("[1]")}
	f.outside = map[string]json.RawMessage{"Beside": json.RawMessage("2")}
	if err := f.Store(content()); err != nil {
		t.Fatal(err)
	}
	f, c, err := Open(dir)
	if err != nil || !equal(c, content()) {
		t.Fatalf("%+v, %v", c, err)
	}
	if err := f.Store(Content{}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, Name))
	if err != nil || !strings.Contains(string(text), `"Later":[1]`) || !strings.Contains(string(text), `"Beside":2`) {
		t.Errorf("%s, %v", text, err)
	}
}

// FuzzOpen: each file is read or set aside, and what was read can be written and is the same then.
func FuzzOpen(f *testing.F) {
	f.Add([]byte(kubelets))
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r","DeviceIDs":` +
		`{"3":["a"],"2":["a"]},"AllocResp":"CgYKAUESAUI="}],"RegisteredDevices":null},"Checksum":3,"Plugins":[{"Endpoint":"/x"}]}`))
	f.Cleanup(func() { format.Sum = sum })
	format.Sum = func([]byte) (uint64, error) { return 3, nil }
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := write(t, string(text))
		file, c, err := Open(dir)
		if err != nil && !equal(c, Content{}) && !strings.Contains(err.Error(), "parts that cannot be used") {
			t.Fatalf("%+v, %v", c, err)
		}
		if err := file.Store(c); err != nil {
			t.Fatal(err)
		}
		_, again, err := Open(dir)
		if err != nil {
			t.Fatalf("what was read as %+v is then %v", c, err)
		}
		if len(again.Entries) != len(c.Entries) || len(again.Plugins) != len(c.Plugins) {
			t.Fatalf("%+v is then %+v", c, again)
		}
	})
}
