package answer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
)

func TestList(t *testing.T) {
	nodes := func(ids ...int64) *pluginapi.TopologyInfo {
		info := &pluginapi.TopologyInfo{}
		for _, id := range ids {
			info.Nodes = append(info.Nodes, &pluginapi.NUMANode{ID: id})
		}
		return info
	}
	got, err := List(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{
		{ID: "a", Health: "Healthy", Topology: nodes(1, -1, 0, 1)}, {ID: "b", Health: "healthy"}, {ID: "c"},
		{ID: "d", Health: "Unhealthy"}, {ID: "d", Health: "Healthy", Topology: nodes(-1)},
	}})
	want := "map[a:{true [0 1]} b:{false []} c:{false []} d:{true []}]"
	if err != nil || fmt.Sprint(got) != want {
		t.Errorf("the devices are %v, %v, want %s", got, err, want)
	}
	if got, err := List(nil); err != nil || len(got) != 0 {
		t.Errorf("without a list: %v, %v", got, err)
	}
}

func TestStrangeListsAreRefused(t *testing.T) {
	many := &pluginapi.ListAndWatchResponse{}
	for i := range MaxDevices + 1 {
		many.Devices = append(many.Devices, &pluginapi.Device{ID: fmt.Sprint(i)})
	}
	one := func(d *pluginapi.Device) *pluginapi.ListAndWatchResponse {
		return &pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: "a"}, d}}
	}
	for want, list := range map[string]*pluginapi.ListAndWatchResponse{
		"the plugin has 65537 devices, at most 65536 are possible": many,
		"devices[1].ID: it is empty":                               one(&pluginapi.Device{}),
		"devices[1].ID: it is empty ":                              one(nil),
		`devices[1].ID: "\x00" has a byte that is 0`:               one(&pluginapi.Device{ID: "\x00"}),
		`devices[1].ID: "\xff" is no UTF-8`:                        one(&pluginapi.Device{ID: "\xff"}),
		`devices[1].ID: "` + strings.Repeat("i", 80) + `"… has 1025 bytes, at most 1024 are possible`: one(
			&pluginapi.Device{ID: strings.Repeat("i", 1025)}),
		`devices[1].topology.nodes: device "b" has 1025 NUMA nodes, at most 1024 are possible`: one(
			&pluginapi.Device{ID: "b", Topology: &pluginapi.TopologyInfo{Nodes: make([]*pluginapi.NUMANode, 1025)}}),
	} {
		if _, err := List(list); err == nil || err.Error() != strings.TrimSpace(want) {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
}

// good is an answer that has everything.
func good() *pluginapi.ContainerAllocateResponse {
	return &pluginapi.ContainerAllocateResponse{
		Envs:        map[string]string{"A.b-c": "x y", "9": ""},
		Mounts:      []*pluginapi.Mount{{ContainerPath: "/c", HostPath: "/h/../i", ReadOnly: true}},
		Devices:     []*pluginapi.DeviceSpec{{ContainerPath: "/dev/c", HostPath: "/dev/h", Permissions: "mrw"}},
		Annotations: map[string]string{"cdi.k8s.io/a_b": "vendor.com/class=x"},
		CdiDevices:  []*pluginapi.CDIDevice{{Name: "vendor.com/class=x"}},
	}
}

func TestAllocated(t *testing.T) {
	c := good()
	if got, err := Allocated(&pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{
		c, {Envs: map[string]string{"": ""}},
	}}); err != nil || got != c {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Allocated(&pluginapi.AllocateResponse{}); err == nil ||
		err.Error() != "no containers return in allocation response" {
		t.Errorf("without a container: %v", err)
	}
	if err := Container(nil); err != nil {
		t.Errorf("nothing to add: %v", err)
	}
	none := &pluginapi.DeviceSpec{ContainerPath: "/c", HostPath: "/h"}
	if err := Container(&pluginapi.ContainerAllocateResponse{Devices: []*pluginapi.DeviceSpec{none}}); err != nil {
		t.Errorf("without permissions: %v", err)
	}
}

func TestStrangeAnswersAreRefused(t *testing.T) {
	for want, change := range map[string]func(*pluginapi.ContainerAllocateResponse){
		`envs[""]: environment variable name must be non-empty`: func(c *pluginapi.ContainerAllocateResponse) {
			c.Envs[""] = "x"
		},
		`envs["A=B"]: a valid environment variable name must consist only of printable ASCII`: func(
			c *pluginapi.ContainerAllocateResponse) {
			c.Envs["A=B"] = "x"
		},
		`envs["A"]: "a\x00b" has a byte that is 0`: func(c *pluginapi.ContainerAllocateResponse) {
			c.Envs["A"] = "a\x00b"
		},
		`mounts[0].container_path: "c" is no absolute path`: func(c *pluginapi.ContainerAllocateResponse) {
			c.Mounts[0].ContainerPath = "c"
		},
		`mounts[0].host_path: "" is no absolute path`: func(c *pluginapi.ContainerAllocateResponse) {
			c.Mounts[0].HostPath = ""
		},
		`mounts[1].container_path: "" is no absolute path`: func(c *pluginapi.ContainerAllocateResponse) {
			c.Mounts = append(c.Mounts, nil)
		},
		`devices[0].container_path: "/` + strings.Repeat("a", 79) + `"… has 4096 bytes, a path has at most 4095`: func(
			c *pluginapi.ContainerAllocateResponse) {
			c.Devices[0].ContainerPath = "/" + strings.Repeat("a", 4095)
		},
		`devices[0].host_path: "../dev/mem" is no absolute path`: func(c *pluginapi.ContainerAllocateResponse) {
			c.Devices[0].HostPath = "../dev/mem"
		},
		`devices[0].permissions: "rx" is not some of r, w and m`: func(c *pluginapi.ContainerAllocateResponse) {
			c.Devices[0].Permissions = "rx"
		},
		`devices[0].permissions: "rwrw" is not some of r, w and m`: func(c *pluginapi.ContainerAllocateResponse) {
			c.Devices[0].Permissions = "rwrw"
		},
		`annotations["a\nb"]: the key has a space or a control`: func(c *pluginapi.ContainerAllocateResponse) {
			c.Annotations["a\nb"] = ""
		},
		`annotations[""]: the key has 0 bytes, 1 to 317 are possible`: func(c *pluginapi.ContainerAllocateResponse) {
			c.Annotations[""] = ""
		},
		`annotations["a"]: the value has 8193 bytes, at most 8192 are possible`: func(c *pluginapi.ContainerAllocateResponse) {
			c.Annotations["a"] = strings.Repeat("x", 8193)
		},
		`annotations: they have 72009 bytes, at most 65536 are possible`: func(c *pluginapi.ContainerAllocateResponse) {
			c.Annotations = map[string]string{}
			for i := range 9 {
				c.Annotations[strconv.Itoa(i)] = strings.Repeat("x", 8000)
			}
		},
		`annotations["a"]: "\x00" has a byte`: func(c *pluginapi.ContainerAllocateResponse) { c.Annotations["a"] = "\x00" },
		`cdi_devices[0].name: "gpu0" is not vendor/class=name`: func(c *pluginapi.ContainerAllocateResponse) {
			c.CdiDevices[0].Name = "gpu0"
		},
		`it has 262`: func(c *pluginapi.ContainerAllocateResponse) { c.Envs["A"] = strings.Repeat("x", 256<<10) },
	} {
		c := good()
		change(c)
		_, err := Allocated(&pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{c}})
		const begin = "the plugin's answer to Allocate cannot be used: "
		if err == nil || !strings.HasPrefix(err.Error(), begin+want) {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
}

func TestTheFirstResourceByNameHasIt(t *testing.T) {
	first, second := good(), good()
	second.Envs = map[string]string{"9": "other", "B": "b"}
	second.Mounts[0].HostPath = "/other"
	second.Mounts = append(second.Mounts, &pluginapi.Mount{ContainerPath: "/d", HostPath: "/d"})
	second.Devices[0].HostPath = "/dev/other"
	second.Annotations["b"] = "c"
	second.CdiDevices = append(second.CdiDevices, &pluginapi.CDIDevice{Name: "vendor.com/class=y"})
	c := &resourcesv1.ContainerResources{}
	Merge(c, map[string]*pluginapi.ContainerAllocateResponse{"b/b": second, "a/a": first, "c/c": nil})
	want := &resourcesv1.ContainerResources{
		Env: map[string]string{"A.b-c": "x y", "9": "", "B": "b"},
		Mounts: []*resourcesv1.ContainerResources_Mount{
			{ContainerPath: "/c", HostPath: "/h/../i", ReadOnly: true}, {ContainerPath: "/d", HostPath: "/d"},
		},
		DeviceNodes: []*resourcesv1.ContainerResources_DeviceNode{
			{ContainerPath: "/dev/c", HostPath: "/dev/h", Permissions: "mrw"},
		},
		Annotations: map[string]string{"cdi.k8s.io/a_b": "vendor.com/class=x", "b": "c"},
		CdiDevices:  []string{"vendor.com/class=x", "vendor.com/class=y"},
	}
	if !proto.Equal(c, want) {
		t.Errorf("the container has\n%s, want\n%s", prototext.Format(c), prototext.Format(want))
	}
}

func TestPreferred(t *testing.T) {
	if got := Preferred(&pluginapi.PreferredAllocationResponse{}); got != nil {
		t.Errorf("no container: %v", got)
	}
	got := Preferred(&pluginapi.PreferredAllocationResponse{
		ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{DeviceIDs: []string{"b", "a"}}, nil},
	})
	if !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("%v", got)
	}
}

// FuzzAnswers: whatever a plugin sends, it is refused or can be merged and sent on.
func FuzzAnswers(f *testing.F) {
	for _, c := range []*pluginapi.ContainerAllocateResponse{good(), {}, nil} {
		text, err := proto.Marshal(&pluginapi.AllocateResponse{
			ContainerResponses: []*pluginapi.ContainerAllocateResponse{c},
		})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	list, err := proto.Marshal(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{
		{ID: "a", Health: "Healthy", Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 1}}}},
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(list)
	f.Fuzz(func(t *testing.T, text []byte) {
		var response pluginapi.AllocateResponse
		if proto.Unmarshal(text, &response) == nil {
			if c, err := Allocated(&response); err == nil {
				merged := &resourcesv1.ContainerResources{}
				Merge(merged, map[string]*pluginapi.ContainerAllocateResponse{"a": c, "b": c})
				if _, err := proto.Marshal(merged); err != nil {
					t.Errorf("%s cannot be sent: %v", prototext.Format(merged), err)
				}
				if !maps.Equal(merged.Env, c.Envs) && len(c.Envs) > 0 {
					t.Errorf("the environment is %v, want %v", merged.Env, c.Envs)
				}
			}
		}
		var list pluginapi.ListAndWatchResponse
		if proto.Unmarshal(text, &list) == nil {
			if devices, err := List(&list); err == nil && len(devices) > len(list.Devices) {
				t.Errorf("%d devices of %d", len(devices), len(list.Devices))
			}
		}
		var preferred pluginapi.PreferredAllocationResponse
		if proto.Unmarshal(text, &preferred) == nil {
			Preferred(&preferred)
		}
	})
}
