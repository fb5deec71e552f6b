package command

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

func TestPods(t *testing.T) {
	p := &podsync{}
	p.explain.listed = []*podsyncv1.PodSummary{
		{
			Namespace: "default", Name: "web", Uid: "1", Source: podsyncv1.PodSource_POD_SOURCE_API, Status: "Running",
			ReadyContainers: 1, Containers: 2, Restarts: 3, Started: timestamppb.New(time.Now().Add(-3 * time.Hour)),
			PodIp: "10.0.0.9",
		},
		{Namespace: "shop", Name: "db-n", Uid: "2", Source: podsyncv1.PodSource_POD_SOURCE_LOCAL, Status: "Pending"},
	}
	dir := p.serve(t)
	out, err := execute(t, "pods", "--runtime-dir="+dir)
	want := `NAMESPACE  NAME  READY  STATUS   RESTARTS  AGE  IP        SOURCE
default    web   1/2    Running  3         3h   10.0.0.9  api
shop       db-n  0/0    Pending  0         -    -         local
There may be more pods: api has not delivered its list yet.
`
	if err != nil || out != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
	out, err = execute(t, "pods", "-n", "shop", "-o", "json", "--runtime-dir="+dir)
	list := PodList{}
	if err != nil || json.Unmarshal([]byte(out), &list) != nil || len(list.Pods) != 1 || list.Pods[0].UID != "2" ||
		list.Pods[0].Started != nil || len(list.Unsynced) != 1 || list.Unsynced[0] != "api" {
		t.Errorf("%v\n%s", err, out)
	}
	for output, want := range map[string]string{
		"name": "default/web\nshop/db-n\n", "yaml": "pods:\n- containers: 2\n  name: web\n",
	} {
		out, err := execute(t, "pods", "-A", "-o", output, "--runtime-dir="+dir)
		if err != nil || !strings.HasPrefix(out, want) {
			t.Errorf("-o %s: %v\n%s", output, err, out)
		}
	}
	watched, cancel := start(t, "pods", "-w", "--runtime-dir="+dir)
	await(t, "the pods", func() bool { return strings.Contains(watched.String(), want) })
	if err := cancel(); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"pods", "--runtime-dir=" + t.TempDir()}, "podsync is not running"},
		{[]string{"pods", "-o", "xml"}, `output is "xml": use "table", "name", "json" or "yaml"`},
		{[]string{"pods", "web"}, `"web" is no flag`},
	} {
		if got := refused(t, c.args...); !strings.Contains(got, c.want) {
			t.Errorf("%q: %s", c.args, got)
		}
	}
}
