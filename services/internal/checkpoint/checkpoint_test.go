package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"
)

// These are the kubelet's types of the data of its device manager's file. Their names count.
type (
	checkpointData struct {
		PodDeviceEntries  []PodDevicesEntry
		RegisteredDevices map[string][]string
	}
	PodDevicesEntry struct {
		PodUID, ContainerName, ResourceName string
		DeviceIDs                           DevicesPerNUMA
		AllocResp                           []byte
	}
	DevicesPerNUMA map[int64][]string
)

// formats are the kinds of files that the kubelet has.
var formats = map[string]Format{
	"text":  {Data: "data", Checksum: "checksum", Sum: SumOfText},
	"crc32": {Data: "Data", Checksum: "Checksum", Sum: sumOfCRC},
	"object": {Data: "Data", Checksum: "Checksum", Object: true, Sum: func(data []byte) (uint64, error) {
		var d checkpointData
		err := json.Unmarshal(data, &d)
		return Sum(d), err
	}},
}

func sumOfCRC(data []byte) (uint64, error) { return uint64(crc32.ChecksumIEEE(data)), nil }

// files are what each kind looks like. The kubelet wrote them.
var files = map[string]string{
	"text":   `{"data":"{\"entries\":{\"uid\":{\"ContainerResources\":{\"c\":{\"limits\":{\"cpu\":\"100m\"}}},\"PodLevelResources\":null,\"EmptyDirVolumeLimits\":null}}}","checksum":3019530724}`,
	"crc32":  `{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":null}","Checksum":4010664294}`,
	"object": `{"Data":{"PodDeviceEntries":[{"PodUID":"uid","ContainerName":"c","ResourceName":"a.b/c","DeviceIDs":{"-1":["b","a"],"0":null},"AllocResp":"AAE="}],"RegisteredDevices":{"a.b/c":["a","b"]}},"Checksum":2024234939}`,
}

func TestFormats(t *testing.T) {
	for name, file := range files {
		f := formats[name]
		c, err := f.Decode([]byte(file))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.Others != nil {
			t.Errorf("%s: others are %v", name, c.Others)
		}
		if again, err := f.Encode(c); err != nil || string(again) != file {
			t.Errorf("%s: encoded again, it is\n%s, %v, want\n%s", name, again, err, file)
		}
	}
}

// TestOtherFieldsAreKept: a later version has them.
func TestOtherFieldsAreKept(t *testing.T) {
	f := formats["text"]
	own := `{"data":"{}","checksum":` + sumOf(t, f, "{}")
	c, err := f.Decode([]byte(`{"policyName":"static","DATA":7,"a":{"b":[1, 2]},` + own[1:] + `}`))
	if err != nil {
		t.Fatal(err)
	}
	want := own + `,"a":{"b":[1,2]},"policyName":"static"}`
	if got, err := f.Encode(c); err != nil || string(got) != want {
		t.Errorf("encoded again, it is\n%s, %v, want\n%s", got, err, want)
	}
}

func sumOf(t *testing.T, f Format, data string) string {
	t.Helper()
	sum, err := f.Sum([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(sum)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// An object may be in the file with white space, and counts without.
func TestAnObjectIsWrittenAsItIsRead(t *testing.T) {
	f := formats["object"]
	file, err := f.Encode(Content{Data: []byte("{\n \"RegisteredDevices\": {\"a < b\": null}\n}")})
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Decode(file)
	if err != nil || string(c.Data) != `{"RegisteredDevices":{"a < b":null}}` {
		t.Errorf("it is %s, %v", c.Data, err)
	}
}

func TestDamageIsNamed(t *testing.T) {
	text, object := formats["text"], formats["object"]
	for file, want := range map[string]string{
		"":                            "it is no JSON object: unexpected end",
		"[]":                          "it is no JSON object",
		"null":                        "it has no field data",
		`{"data":"{}"}`:               "it has no field checksum",
		`{"checksum":1}`:              "it has no field data",
		`{"data":{},"checksum":1}`:    "field data: ",
		`{"data":"{}","checksum":1}`:  "field checksum is 1, and the checksum of field data is 694314937",
		`{"data":"{}","checksum":-1}`: "field checksum: ",
		`{"data":"{}","checksum":18446744073709551616}`: "field checksum: ",
		`{"data":"{}","checksum":1e400}`:                "field checksum: ",
		`{"data":"{}","checksum":"1"}`:                  "field checksum: ",
		`{"data":"{}","checksum":1} `:                   "field checksum is 1, ",
		`{"data":"{}","checksum":1}{`:                   "it is no JSON object",
		"\xff":                                          "it is no JSON object",
		strings.Repeat(`{"data":`, 20000):               "it is no JSON object",
	} {
		if _, err := text.Decode([]byte(file)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.60q: %v, want %s", file, err, want)
		}
	}
	if _, err := object.Decode([]byte(`{"Data":{"PodDeviceEntries":1},"Checksum":1}`)); err == nil ||
		!strings.HasPrefix(err.Error(), "compute the checksum of field Data: ") {
		t.Errorf("data of another type: %v", err)
	}
}

func TestATruncatedFileIsNoFile(t *testing.T) {
	for name, file := range files {
		for n := range file {
			if _, err := formats[name].Decode([]byte(file[:n])); err == nil {
				t.Errorf("%s: the first %d bytes count", name, n)
			}
		}
	}
}

func TestABitThatFlipsInTheDataIsNoticed(t *testing.T) {
	for name, file := range files {
		for n := strings.Index(file, "uid"); n > 0 && n < strings.LastIndex(file, ","); n++ {
			changed := []byte(file)
			changed[n] ^= 1
			if c, err := formats[name].Decode(changed); err == nil {
				was, _ := formats[name].Decode([]byte(file))
				if !bytes.Equal(c.Data, was.Data) && name != "object" { // an unknown field of an object does not count
					t.Errorf("%s: byte %d: %s counts", name, n, changed)
				}
			}
		}
	}
}

func TestWhatCannotBeWrittenIsAnError(t *testing.T) {
	fails := Format{Data: "d", Checksum: "c", Sum: func([]byte) (uint64, error) { return 0, errors.New("no sum") }}
	for name, c := range map[string]struct {
		f    Format
		c    Content
		want string
	}{
		"no UTF-8":      {formats["text"], Content{Data: []byte("\xff")}, "field data is no UTF-8"},
		"no object":     {formats["object"], Content{Data: []byte("{")}, "encode field Data: "},
		"another type":  {formats["object"], Content{Data: []byte("[]")}, "compute the checksum of field Data: "},
		"no checksum":   {fails, Content{Data: []byte("{}")}, "compute the checksum of field d: no sum"},
		"another field": {formats["text"], Content{Data: []byte("{}"), Others: fields("{")}, "json: "},
	} {
		if file, err := c.f.Encode(c.c); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %s, %v, want %s", name, file, err, c.want)
		}
	}
}

func fields(value string) map[string]json.RawMessage {
	return map[string]json.RawMessage{"x": json.RawMessage(value)}
}

func TestJoin(t *testing.T) {
	for _, c := range []struct{ object, want string }{
		{`{}`, `{"x":1}`}, {` {"a":2} `, ` {"a":2,"x":1}`}, {`{"a":{}}`, `{"a":{},"x":1}`},
	} {
		object := []byte(c.object)
		if got, err := Join(object, fields("1")); err != nil || strings.TrimSpace(string(got)) != strings.TrimSpace(c.want) {
			t.Errorf("%s: %s, %v", c.object, got, err)
		}
		if string(object) != c.object {
			t.Errorf("%s was changed: %s", c.object, object)
		}
	}
	if got, err := Join([]byte(`{"a":1}`), nil); err != nil || string(got) != `{"a":1}` {
		t.Errorf("nothing to add: %s, %v", got, err)
	}
}

func TestUnknown(t *testing.T) {
	got, err := Unknown([]byte(`{"Entries":1,"ENTRIES":2,"entry":3}`), "entries")
	if want := map[string]json.RawMessage{"entry": json.RawMessage("3")}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := Unknown([]byte("[]")); err == nil {
		t.Error("no error for a list")
	}
}

// What is decoded can be written, and is then the same.
func FuzzDecode(f *testing.F) {
	for name, file := range files {
		f.Add(name == "object", []byte(file))
	}
	f.Add(false, []byte(`{"data":"{}","checksum":3,"x":[{"a":1e9}],"DATA":null}`))
	f.Fuzz(func(t *testing.T, object bool, file []byte) {
		format := formats["text"]
		format.Sum = func(data []byte) (uint64, error) { return uint64(len(bytes.TrimSpace(data))), nil }
		if format.Object = object; object {
			format.Data, format.Checksum = "Data", "Checksum"
			format.Sum = func([]byte) (uint64, error) { return 3, nil }
		}
		c, err := format.Decode(file)
		if err != nil {
			return
		}
		again, err := format.Encode(c)
		if err != nil {
			t.Fatalf("%q: %v", file, err)
		}
		b, err := format.Decode(again)
		if err != nil {
			t.Fatalf("%q, written as %q: %v", file, again, err)
		}
		last, err := format.Encode(b)
		if err != nil || !bytes.Equal(last, again) {
			t.Fatalf("%q, written as %q, then as %q: %v", file, again, last, err)
		}
	})
}
