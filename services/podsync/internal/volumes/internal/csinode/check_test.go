package csinode

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/fake"
)

// What a driver says must not make a Node of it that the API server refuses: the node would go, with all its pods.
func TestWhatTheAPIServerWouldRefuseIsNotPublished(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	for name, c := range map[string]struct {
		driver string
		info   *csi.NodeGetInfoResponse
		want   string
	}{
		"empty":           {"d", &csi.NodeGetInfoResponse{}, "driverNodeID of d must not be empty"},
		"a driver's path": {"../d", info("one", 0, nil), `the name of the driver is "../d": a lowercase RFC 1123`},
		"a long driver":   {strings.Repeat("d", 64), info("one", 0, nil), "has 64 bytes: at most 63"},
		"a huge ID":       {"d", info(long, 0, nil), "node_id has 1048576 bytes: at most 256"},
		"an ID of lines":  {"d", info("a\nb", 0, nil), `node_id is "a\nb"`},
		"no text":         {"d", info("a\xff", 0, nil), `node_id is "a\xff"`},
		"huge topology":   {"d", info("one", 0, map[string]string{"k": long}), "has 1048577 bytes: at most 4096"},
		"a key that climbs": {"d", info("one", 0, map[string]string{"../../zone": "a"}),
			`accessible_topology is "../../zone":"a"`},
		"no key":           {"d", info("one", 0, map[string]string{"": "a"}), `accessible_topology is "":"a"`},
		"a value of words": {"d", info("one", 0, map[string]string{"rack": "a b"}), `accessible_topology is "rack":"a b"`},
		"a key of Kubernetes": {"d", info("one", 0, map[string]string{"node-restriction.kubernetes.io/x": "a"}),
			"a node may not give itself this label"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &nodestatus{node: theNode()}
			err := newNode(fake.NewClientset(theNode()), s).Registered(t.Context(), c.driver, c.info)
			if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 4<<10 {
				t.Errorf("the error is %.300v, want %s", err, c.want)
			}
			if s.published != nil {
				t.Errorf("published: %v", s.published)
			}
		})
	}
}

// FuzzNodeInfo has a driver answer any bytes. What passes makes valid labels and a small annotation.
func FuzzNodeInfo(f *testing.F) {
	add := func(driver string, r *csi.NodeGetInfoResponse) {
		text, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(driver, text)
	}
	add("d.example", info("one", 7, map[string]string{"topology.d.example/zone": "a"}))
	add("d.example", info("", -1, nil))
	add("../d", info("../../n", 1<<62, map[string]string{"../../x": "../.."}))
	add("d.example", info(strings.Repeat("n", 257), 0, map[string]string{"kubernetes.io/x": ""}))
	f.Add("d.example", []byte("\x0a\xff\xff\xff\xff\x0f"))
	f.Fuzz(func(t *testing.T, driver string, answer []byte) {
		r := &csi.NodeGetInfoResponse{}
		if proto.Unmarshal(answer, r) != nil {
			return // the caller gets an error, and no answer
		}
		if check(driver, r) != nil {
			return
		}
		if strings.ContainsAny(driver, "/\\") || len(utilvalidation.IsDNS1123Subdomain(driver)) > 0 {
			t.Errorf("a driver is called %q", driver)
		}
		text, err := json.Marshal(map[string]string{driver: r.GetNodeId()})
		if err != nil || len(text) > 6*maxNodeID+maxDriverName+16 {
			t.Errorf("the annotation has %d bytes: %v", len(text), err)
		}
		size := 0
		for key, value := range r.GetAccessibleTopology().GetSegments() {
			size += len(key) + len(value)
			if len(utilvalidation.IsQualifiedName(key)) > 0 || len(utilvalidation.IsValidLabelValue(value)) > 0 {
				t.Errorf("a label is %q: %q", key, value)
			}
		}
		if size > maxTopology {
			t.Errorf("labels of %d bytes", size)
		}
	})
}
