//go:build long

package twins

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// collectPeriod is how long either agent waits before it collects again.
const collectPeriod = 6 * time.Minute

// TestImageGC starts the kubelet and then microlet on a node whose disk is too full by their thresholds. Both remove
// the unused image, keep those of a running and of an ended container and the pinned one, and send the same Events.
// Then the Node lists the images that are left.
func TestImageGC(t *testing.T) {
	s := scene.New(t)
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	theirs := collected(s, t, rig.AgentKubelet)
	scene.Shared.SwitchTo(t, rig.AgentMicrolet)
	ours := collected(s, t, rig.AgentMicrolet)
	t.Logf("under the kubelet:\n%s", strings.Join(theirs, "\n"))
	if d := cmp.Diff(theirs, ours); d != "" {
		t.Errorf("-kubelet +microlet\n%s", d)
	}
}

// number is what differs between two runs in the messages of Events.
var number = regexp.MustCompile(`\d+(\.\d+)?`)

// collected lets the agent collect, and returns one fact per line.
func collected(s *scene.Scene, t *testing.T, agent rig.Agent) []string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	unused := scene.ScriptPod("unused", "true")
	unused.Spec.Containers[0].Image = rig.AgnhostImage
	unused.Spec.Containers[0].Command = []string{"/agnhost", "pause"}
	unused.Spec.Containers[0].Args = nil
	ended := scene.ScriptPod("ended", "true")
	ended.Spec.RestartPolicy = corev1.RestartPolicyNever
	s.CreatePods(scene.PausePod("runs"), unused, ended)
	s.WaitReady(scene.Patience, "runs", "unused")
	s.DeletePods("unused")
	s.Wait(scene.Patience, "the end of the pod", s.AreGone("unused"))
	s.LeavesNoContainer("unused")
	if !slices.Contains(images(s, t), rig.AgnhostImage) {
		t.Fatalf("before there are %q", images(s, t))
	}
	events := s.API.CoreV1().Events(metav1.NamespaceDefault)
	if err := events.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	scene.Shared.SwitchTo(t, agent, "--image-gc-high-threshold=1", "--image-gc-low-threshold=0",
		"--minimum-image-ttl-duration=0s")
	began := time.Now()
	var facts []string
	scene.Await(t, collectPeriod, "the garbage collection", func() error {
		list, err := events.List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node"})
		if err != nil {
			return err
		}
		facts = facts[:0]
		for _, e := range list.Items {
			if e.Reason == "FreeDiskSpaceFailed" {
				facts = append(facts, fmt.Sprintf("%s %s from %s: %s", e.Type, e.Reason, e.Source.Component,
					number.ReplaceAllString(e.Message, "N")))
			}
		}
		if len(facts) == 0 || slices.Contains(images(s, t), rig.AgnhostImage) {
			return errors.New("it has not been")
		}
		return nil
	})
	t.Logf("%s has collected after %s", agent, time.Since(began).Round(time.Second))
	left := images(s, t)
	facts = append(facts[:1], "left: "+strings.Join(left, " "))
	scene.Await(t, scene.Patience, "the Node's list of images", func() error {
		node, err := s.API.CoreV1().Nodes().Get(ctx, s.NodeName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		var listed []string
		for _, image := range node.Status.Images {
			listed = append(listed, fmt.Sprintf("%s %d", strings.Join(image.Names, " "), image.SizeBytes))
			if strings.Contains(strings.Join(image.Names, " "), rig.AgnhostImage) {
				return errors.New("it has the image that was removed")
			}
		}
		if len(listed) != len(left) {
			return fmt.Errorf("it has %d images, the runtime %d", len(listed), len(left))
		}
		facts = append(facts[:2], "listed: "+strings.Join(listed, ", "))
		return nil
	})
	s.DeletePods("runs", "ended")
	s.Wait(scene.Patience, "the end of the pods", s.AreGone("runs", "ended"))
	return facts
}

// images are the tags of all images that the runtime has.
func images(s *scene.Scene, t *testing.T) []string {
	t.Helper()
	conn, err := s.DialRuntime()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	resp, err := runtimeapi.NewImageServiceClient(conn).ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, image := range resp.GetImages() {
		all = append(all, image.GetRepoTags()...)
	}
	slices.Sort(all)
	return all
}
