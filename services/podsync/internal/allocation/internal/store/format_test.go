package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/checkpoint"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// file is one with this data, and with the fields of others, which is a JSON object.
func file(t testing.TB, data, others string) string {
	t.Helper()
	fields, err := checkpoint.Unknown([]byte(others))
	if err != nil {
		t.Fatal(err)
	}
	text, err := format.Encode(checkpoint.Content{Data: []byte(data), Others: fields})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// opened is the store of a file that has this text, and its path.
func opened(t *testing.T, text string) (*Store, string, error) {
	t.Helper()
	path := newPath(t)
	write(t, path, text)
	s, err := Open(path)
	return s, path, err
}

const (
	podA = `"a":{"ContainerResources":{"c":{"limits":{"cpu":"1"}}},"PodLevelResources":null,"EmptyDirVolumeLimits":null}`
	podB = `"b":{"ContainerResources":{},"PodLevelResources":null,"EmptyDirVolumeLimits":null}`
)

// TestOtherVersions: what they have of resources counts, whichever of their fields this one knows.
func TestOtherVersions(t *testing.T) {
	a := map[types.UID]pod.Resources{"a": containers("c", "1")}
	for name, c := range map[string]struct {
		data, others string
		want         map[types.UID]pod.Resources
		// written is the data after a change of pod b, and writtenOthers is what is beside it.
		written, writtenOthers string
	}{
		"1.37":              {`{"entries":{` + podA + `}}`, `{}`, a, `{"entries":{` + podA + `,` + podB + `}}`, `{}`},
		"1.37 without pods": {`{}`, `{}`, nil, `{"entries":{` + podB + `}}`, `{}`},
		"null":              {`null`, `{}`, nil, `{"entries":{` + podB + `}}`, `{}`},
		"1.34": {`{"allocationEntries":{"a":{"c":{"limits":{"cpu":"1"}}}}}`, `{}`, a,
			`{"entries":{` + podA + `,` + podB + `}}`, `{}`},
		"with more fields": {`{"entries":{` + podA[:len(podA)-1] + `,"x":{"y":[1]}}},"z":"1"}`, `{"w":{}}`, a,
			`{"entries":{` + podA[:len(podA)-1] + `,"x":{"y":[1]}},` + podB + `},"z":"1"}`, `{"w":{}}`},
		// It has the pods twice. After a change the other form would be wrong.
		"v2":              {`{"podList":"CgA=","entries":{` + podA + `}}`, `{"version":"v2","x":1}`, a, `{"entries":{` + podA + `,` + podB + `}}`, `{}`},
		"v2 without pods": {`{"podList":"CgA="}`, `{"version":"v2"}`, nil, `{"entries":{` + podB + `}}`, `{}`},
		"no version":      {`{"entries":{` + podA + `}}`, `{"version":""}`, a, `{"entries":{` + podA + `,` + podB + `}}`, `{"version":""}`},
		"another version": {`{"entries":{` + podA + `}}`, `{"version":4}`, a, `{"entries":{` + podA + `,` + podB + `}}`, `{}`},
	} {
		text := file(t, c.data, c.others)
		s, path, err := opened(t, text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		has(t, s, c.want)
		if read(t, path) != text {
			t.Errorf("%s: it is written without a change", name)
		}
		if err := setOne(s, "b", pod.Resources{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, want := read(t, path), file(t, c.written, c.writtenOthers); got != want {
			t.Errorf("%s: after a change it is\n%s, want\n%s", name, got, want)
		}
	}
}

// TestAChangeKeepsWhatElseAPodHas is about the limits of its volumes, and fields of later versions.
func TestAChangeKeepsWhatElseAPodHas(t *testing.T) {
	s, path, err := opened(t, file(t, `{"entries":{"a":{"x":[1],"EmptyDirVolumeLimits":{"v":"1Gi","w":null}}}}`, `{}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(setOne(s, "a", containers("c", "7")), setContainer(s, "a", "c", cpu("1"))); err != nil {
		t.Fatal(err)
	}
	want := `{"entries":{` + strings.Replace(podA[:len(podA)-1], `Limits":null`, `Limits":{"v":"1Gi","w":null}`, 1) + `,"x":[1]}}}`
	if got := read(t, path); got != file(t, want, `{}`) {
		t.Errorf("it is %s", got)
	}
}

// TestNoFileStopsAStart: one that cannot be used is set aside, and the store works.
func TestNoFileStopsAStart(t *testing.T) {
	good := file(t, `{"entries":{`+podA+`,`+podB+`}}`, `{}`)
	bad := map[string]string{
		"empty": "", "zeros": strings.Repeat("\x00", 4096), "a list": "[]", "no fields": "{}", "no data": `{"checksum":1}`,
		"another checksum": `{"data":"{}","checksum":1}`, "data of another type": `{"data":{},"checksum":1}`,
		"no JSON": file(t, "", `{}`), "a list in it": file(t, "[]", `{}`), "entries of another type": file(t, `{"entries":[]}`, `{}`),
		"an unknown version": file(t, `{"pods":{}}`, `{"version":"v3"}`),
		"an odd version":     file(t, `{"pods":{}}`, `{"version":{"major":"`+strings.Repeat("3", 1000)+`"}}`),
	}
	for n := range good {
		bad[fmt.Sprint("the first ", n)] = good[:n]
	}
	for name, text := range bad {
		s, path, err := opened(t, text)
		want := path + " cannot be used, and is " + path + ".bad now: "
		if err == nil || !strings.HasPrefix(err.Error(), want) || len(err.Error()) > 600 {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
		if kept := read(t, path+".bad"); kept != text {
			t.Errorf("%s: %q is kept", name, kept)
		}
		has(t, s, nil)
		if err := setOne(s, "a", containers("c", "1")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		has(t, open(t, path), map[types.UID]pod.Resources{"a": containers("c", "1")})
	}
}

// TestALinkIsNotFollowed, nor is what it leads to changed.
func TestALinkIsNotFollowed(t *testing.T) {
	path := newPath(t)
	other := filepath.Join(t.TempDir(), "other")
	write(t, other, file(t, `{"entries":{`+podA+`}}`, `{}`))
	if err := os.Symlink(other, path); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path)
	if err == nil || !strings.Contains(err.Error(), "it is not a regular file") {
		t.Errorf("%v", err)
	}
	has(t, s, nil)
	if err := setOne(s, "b", pod.Resources{}); err != nil {
		t.Fatal(err)
	}
	has(t, open(t, other), map[types.UID]pod.Resources{"a": containers("c", "1")})
	has(t, open(t, path), map[types.UID]pod.Resources{"b": containers()})
}

func TestALargeFileIsNotRead(t *testing.T) {
	path := newPath(t)
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, maxFile+1)); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path)
	if err == nil || !strings.Contains(err.Error(), "it has 67108865 bytes, and at most 67108864 are read") {
		t.Errorf("%v", err)
	}
	has(t, s, nil)
}

// TestTheLargestFileIsRead: no text of entries is longer in the file than this one.
func TestTheLargestFileIsRead(t *testing.T) {
	entries, size := map[types.UID]entry{}, 0
	for range 4 {
		quotes := entry{text: json.RawMessage(`{"x":[` + strings.Repeat(`"",`, maxEntry/3-10) + `0]}`)}
		entries[types.UID(fmt.Sprintf("%036d", size))] = quotes
		size += len(quotes.text)
	}
	content, err := kept{}.content(entries)
	if err != nil {
		t.Fatal(err)
	}
	path := newPath(t)
	if err := checkpoint.New(path, format, maxFile).Store(content); err != nil {
		t.Fatal(err)
	}
	if s := open(t, path); len(s.UIDs()) != len(entries) {
		t.Errorf("it has %d of %d pods", len(s.UIDs()), len(entries))
	}
	if largest := len(read(t, path)) * (maxEntries / size); largest > maxFile {
		t.Errorf("a file may have %d bytes, and %d are read", largest, maxFile)
	}
}

// TestABadEntryHarmsNoOther: the kubelet would not start with any of these, so none is written again.
func TestABadEntryHarmsNoOther(t *testing.T) {
	began := time.Now()
	for text, want := range map[string]string{
		`7`:                         `pod "x": json: `,
		`{"ContainerResources":[]}`: `pod "x": json: `,
		`{"ContainerResources":{"c":{"limits":{"cpu":"one"}}}}`:                 `pod "x": container "c": quantity "one": `,
		`{"ContainerResources":{"c":{"limits":{"cpu":true}}}}`:                  `pod "x": container "c": quantity "true": `,
		`{"ContainerResources":{"c":{"limits":{"cpu":"1e-2147483647"}}}}`:       `pod "x": container "c": quantity "1e-2147483647" has the exponent -2147483647, `,
		`{"ContainerResources":{"c":{"limits":{"cpu":" 1E-2147483647\t"}}}}`:    `pod "x": container "c": quantity `,
		`{"ContainerResources":{"c":{"requests":{"cpu":1e2147483647}}}}`:        `pod "x": container "c": quantity "1e2147483647" has the exponent 2147483647, `,
		`{"PodLevelResources":{"limits":{"cpu":"1E+99999999999999999999"}}}`:    `pod "x": PodLevelResources: quantity "1E+99999999999999999999" has the exponent +99999999999999999999, `,
		`{"PodLevelResources":{"limits":{"cpu":"` + nines(100000) + `"}}}`:      `pod "x": PodLevelResources: quantity "\"9999999999999999999" has 100002 bytes, `,
		`{"PodLevelResources":{"limits":{"cpu":"two"}},"podlevelresources":{}}`: `pod "x": quantity "two": `,
		`{"ContainerResources":{"c":{"limits":{"cpu":"two"}},"c":{}}}`:          `pod "x": quantity "two": `,
		`{"EmptyDirVolumeLimits":{"v":"1e-999999999"}}`:                         `pod "x": EmptyDirVolumeLimits: quantity "1e-999999999" has the exponent `,
		`{"ContainerResources":{"` + strings.Repeat("c", 1000) + `":{"a":1}}}`:  ``,
		`{"x":"` + strings.Repeat("x", maxEntry) + `"}`:                         `pod "x": it has 131080 bytes of resources, at most 131072 are possible`,
	} {
		s, path, err := opened(t, file(t, `{"entries":{`+podA+`,"x":`+text+`}}`, `{}`))
		good := map[types.UID]pod.Resources{"a": containers("c", "1")}
		if want == "" {
			if err != nil {
				t.Errorf("%.100s: %v", text, err)
			}
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), path+" has entries that cannot be used: "+want) {
			t.Errorf("%.100s: %v, want %s", text, err, want)
		}
		has(t, s, good)
		s.Write(nil)
		if got := read(t, path); got != file(t, `{"entries":{`+podA+`}}`, `{}`) {
			t.Errorf("%.100s: it is written as %s", text, got)
		}
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("numbers took %v", took)
	}
}

func nines(n int) string { return strings.Repeat("9", n) }

func TestAnErrorNamesAFewEntries(t *testing.T) {
	var entries []string
	for n := range 1000 {
		entries = append(entries, fmt.Sprintf(`"%s%d":7`, strings.Repeat("x", 100), n))
	}
	_, _, err := opened(t, file(t, `{"entries":{`+strings.Join(entries, ",")+`}}`, `{}`))
	if err == nil || !strings.HasSuffix(err.Error(), "\nand 995 more") || len(err.Error()) > 2000 {
		t.Errorf("%v", err)
	}
}

func TestQuantities(t *testing.T) {
	for _, text := range []string{
		"1", "0", "-1", "1e3", "1E3", "1E+3", "1e-3", "5E", "5Ei", "1.5Gi", "100m", "100n", "9223372036854775807", "1e99",
		"+1", ".5", "5.",
	} {
		var q quantity
		if err := json.Unmarshal([]byte(`"`+text+`"`), &q); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if want := resource.MustParse(text); want.Cmp(resource.Quantity(q)) != 0 {
			t.Errorf("%s is %v", text, q)
		}
	}
}

// FuzzParse: whatever a file has, it takes no long time, and what counts is written so that it counts again.
func FuzzParse(f *testing.F) {
	for _, data := range []string{
		`{"entries":{` + podA + `,` + podB + `}}`, `{"allocationEntries":{"a":{"c":{"limits":{"cpu":"1"}}}},"x":1}`, `null`,
		`{"entries":{"a":{"PodLevelResources":{"requests":{"memory":"1.5Gi"},"claims":[{"name":"n"}]},"x":[]},"é<":null}}`,
		`{"entries":{"a":{"EmptyDirVolumeLimits":{"v":1e3}},"b":{"containerresources":{"c":{"Limits":{"cpu":"1e-9"}}}}}}`,
	} {
		f.Add([]byte(data), []byte(`"v2"`))
	}
	f.Fuzz(func(t *testing.T, data, version []byte) {
		content := checkpoint.Content{Data: data, Others: map[string]json.RawMessage{versionField: version}}
		entries, k, _, err := parse(content)
		if err != nil {
			return
		}
		for uid := range entries { // a change of each, which changes nothing
			if entries[uid], err = entries[uid].with(entries[uid].resources); err != nil && len(data) < maxEntry/8 {
				t.Fatalf("pod %q of %q: %v", uid, data, err)
			}
		}
		written, err := k.content(entries)
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		again, k, skipped, err := parse(written)
		if err = errors.Join(skipped, err); err != nil || len(again) != len(entries) {
			t.Fatalf("%q, written as %q: %v", data, written.Data, err)
		}
		for uid, e := range entries {
			if !equality.Semantic.DeepEqual(again[uid].resources, e.resources) {
				t.Errorf("pod %q has %+v, then %+v", uid, e.resources, again[uid].resources)
			}
			for _, r := range e.resources.Containers {
				for _, q := range r.Limits {
					q.Cmp(resource.MustParse("1"))
				}
			}
		}
		if last, err := k.content(again); err != nil || !bytes.Equal(last.Data, written.Data) {
			t.Errorf("%q, written as %q, then as %q: %v", data, written.Data, last.Data, err)
		}
	})
}
