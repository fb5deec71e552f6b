package command

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// explainServer knows the pod default/web, which is rejected, and admits no pod of a file.
type explainServer struct {
	podsyncv1.UnimplementedExplainServiceServer
	listed []*podsyncv1.PodSummary
}

func (*explainServer) ExplainPod(_ context.Context,
	r *podsyncv1.ExplainPodRequest) (*podsyncv1.ExplainPodResponse, error) {
	if r.GetNamespace() != "default" || r.GetName() != "web" {
		return nil, status.Errorf(codes.NotFound, "no source has pod %s/%s", r.GetNamespace(), r.GetName())
	}
	return &podsyncv1.ExplainPodResponse{Pod: &podsyncv1.PodExplanation{
		Namespace: "default", Name: "web", Uid: "1", Source: podsyncv1.PodSource_POD_SOURCE_API, Phase: "terminating",
		Admission: &podsyncv1.Admission{
			State: podsyncv1.Admission_STATE_REJECTED, Reason: "OutOfcpu", Message: "no room",
		},
	}}, nil
}

func (*explainServer) CheckPod(_ context.Context,
	r *podsyncv1.CheckPodRequest) (*podsyncv1.CheckPodResponse, error) {
	answer := &podsyncv1.CheckPodResponse{Admission: &podsyncv1.Admission{State: podsyncv1.Admission_STATE_ADMITTED}}
	if r.GetStatic() {
		answer.Admission = &podsyncv1.Admission{
			State: podsyncv1.Admission_STATE_REJECTED, Reason: "OutOfcpu", Message: "no room",
		}
	}
	return answer, nil
}

func (s *explainServer) ListPods(context.Context,
	*podsyncv1.ListPodsRequest) (*podsyncv1.ListPodsResponse, error) {
	return &podsyncv1.ListPodsResponse{Pods: s.listed, Sources: []*podsyncv1.SourceState{
		{Source: podsyncv1.PodSource_POD_SOURCE_API}, {Source: podsyncv1.PodSource_POD_SOURCE_LOCAL, Synced: true},
	}}, nil
}

func TestExplainPod(t *testing.T) {
	dir := (&podsync{}).serve(t)
	for _, name := range []string{"web", "default/web", "pod/web", "po/web", "pod web", "pods web", "pod default/web"} {
		out, err := execute(t, append(append([]string{"explain"}, strings.Fields(name)...), "--runtime-dir="+dir)...)
		if err != nil || !strings.Contains(out, "pod default/web (uid 1, source API): failed\n  because admission: "+
			"OutOfcpu: no room\n") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	out, err := execute(t, "explain", "web", "-o", "json", "--runtime-dir="+dir)
	var x struct {
		Causes []struct{ Part, Reason string }
	}
	if err != nil || json.Unmarshal([]byte(out), &x) != nil || len(x.Causes) != 1 || x.Causes[0].Reason != "OutOfcpu" {
		t.Errorf("%v\n%s", err, out)
	}
	if got := refused(t, "explain", "web", "-n", "shop", "--runtime-dir="+dir); got != "no source has pod shop/web" {
		t.Error(got)
	}
}

const (
	goodPod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n"
	badJob  = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: job}\n" +
		"spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}],\n" +
		"    volumes: [{name: v, iscsi: {targetPortal: a, iqn: iqn.2001-04.a:b, lun: 1}}]}}}\n"
)

const serviceObject = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"

// gpuPod is one that no node of ours runs.
func gpuPod(name, node, more string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {nodeName: %s, containers: "+
		"[{name: c, image: i, resources: {limits: {kubernetes.io/gpu: 1}}%s}]}\n", name, node, more)
}

// Of the pods of a cluster, the good ones are counted alone.
func TestExplainACluster(t *testing.T) {
	var pods []string
	for i := range 30 {
		node := fmt.Sprintf("node-%d", i%3)
		if i < 4 {
			pods = append(pods, gpuPod(fmt.Sprintf("gpu-%d", i), node, ""))
			continue
		}
		pods = append(pods, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: web-%d}\nspec: {nodeName: %s, "+
			"containers: [{name: c, image: i}]}\n", i, node))
	}
	pods[3] = strings.Replace(pods[3], "image: i", "image: i, ports: [{containerPort: -1}]", 1)
	cmd := New()
	var out strings.Builder
	cmd.SetIn(strings.NewReader(strings.Join(append(pods, serviceObject), "---\n")))
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"explain", "-", "--runtime-dir=" + t.TempDir()})
	err := cmd.ExecuteContext(t.Context())
	if err == nil || err.Error() != "-: this node would not run 4 of 30 pods as they are: correct what is listed above" {
		t.Errorf("error %v", err)
	}
	want := `
26 of 30 pods would run; the others are refused:

REFUSED  BECAUSE OF
4        spec.containers.resources.limits[kubernetes.io/gpu]
1        invalid spec.containers.ports.containerPort

REFUSED  PODS  NODE
2        10    node-0
1        10    node-1
1        10    node-2
1 other object has no pod: Service web
`
	if !strings.Contains(out.String(), want) || strings.Contains(out.String(), "web-9") {
		t.Errorf("%s\nwant%s", &out, want)
	}
}

func TestExplainFile(t *testing.T) {
	running, away := (&podsync{}).serve(t), t.TempDir()
	second := filepath.Join(away, "job.yaml")
	if err := os.WriteFile(second, []byte(badJob), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(away, "web.yaml")
	for _, c := range []struct {
		name, manifest string
		args           []string
		want           string
		refused        bool
	}{
		{"admitted", goodPod, []string{"--runtime-dir=" + running}, "Pod web: this node would run it\n", false},
		{"not admitted", goodPod, []string{"--runtime-dir=" + running, "--static"},
			"Pod web: refused\n  not admitted: OutOfcpu: no room\n", true},
		{"without podsync", goodPod, []string{"--runtime-dir=" + away},
			"Pod web: this node would run it\nThe resources, ports, labels and taints of the node were not looked at: " +
				"podsync is not running", false},
		{"a job without podsync", goodPod + "---\n" + badJob, []string{"--runtime-dir=" + away},
			"Job job: refused\n  not supported: spec.volumes[0].iscsi: remove it", true},
		{"an invalid pod without podsync", "kind: Pod\napiVersion: v1\nmetadata: {name: a}\n",
			[]string{"--runtime-dir=" + away}, "  invalid: spec.containers: Required value", true},
		{"invalid and not supported", goodPod + "---\n" + gpuPod("gpu", "edge", `, ports: [{containerPort: -1}]`),
			[]string{"--runtime-dir=" + away}, "  invalid: spec.containers[0].ports[0].containerPort: Invalid value: -1: " +
				"must be between 1 and 65535, inclusive\n  not supported: " +
				"spec.containers[0].resources.limits[kubernetes.io/gpu]: no device plugin", true},
		{"an object without pods", goodPod + "---\n" + serviceObject, []string{"--runtime-dir=" + away},
			"Pod web: this node would run it\n1 other object has no pod: Service web\n", false},
		{"several files", goodPod, []string{second, "--runtime-dir=" + away},
			"Pod web: this node would run it\nJob job: refused\n", true},
		{"json", badJob, []string{"--runtime-dir=" + away, "-o", "json"}, `"refusedFields": [
      "spec.volumes[0].iscsi"
    ],
    "admission": null`, true},
	} {
		if err := os.WriteFile(file, []byte(c.manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := execute(t, append([]string{"explain", file}, c.args...)...)
		if !strings.Contains(out, c.want) || (err != nil) != c.refused {
			t.Errorf("%s: %v\n%s\nwant %s", c.name, err, out, c.want)
		}
	}
}
