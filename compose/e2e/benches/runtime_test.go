//go:build bench

package benches

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// parallel is near the runtime's best concurrency.
const parallel = 4

// without stops the agent until the test ends.
func without(t *testing.T) {
	t.Helper()
	m := &meter{t: t}
	m.warm() // the image is present
	if err := scene.Shared.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := scene.Shared.StartAgent(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		} else if err := scene.Shared.WaitNodeReady(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// bareSingles calls the runtime directly while no agent runs, for one pod after the other.
func (m *meter) bareSingles() {
	m.t.Helper()
	var ones []time.Duration
	m.callRuntime(func(c runtimeapi.RuntimeServiceClient) error {
		for i := range singles {
			began := time.Now()
			id, err := runPod(m.t.Context(), c, fmt.Sprintf("one-%d", i))
			if err != nil {
				return err
			}
			ones = append(ones, time.Since(began))
			if err := endPod(m.t.Context(), c, id); err != nil {
				return err
			}
		}
		return nil
	})
	m.put(rowSingle, record.Percentile(ones, 0.5).Seconds())
}

// bareBatches does it for many pods, a few at a time.
func (m *meter) bareBatches(count int) {
	m.t.Helper()
	var runs []batchTimes
	for range count {
		time.Sleep(calmBefore)
		m.callRuntime(func(c runtimeapi.RuntimeServiceClient) error {
			b, err := m.bareBatch(c)
			runs = append(runs, b)
			return err
		})
	}
	m.putBatches("pods", runs)
	m.putProcessors(runs)
}

func (m *meter) bareBatch(c runtimeapi.RuntimeServiceClient) (b batchTimes, err error) {
	var mu sync.Mutex
	var starts []time.Duration
	began, used := time.Now(), m.processors()
	ids, err := each(batch, func(i int) (string, error) {
		id, err := runPod(m.t.Context(), c, fmt.Sprintf("many-%d", i))
		mu.Lock()
		starts = append(starts, time.Since(began))
		mu.Unlock()
		return id, err
	})
	if err != nil {
		return b, err
	}
	b.all, b.middle, b.starting = time.Since(began), record.Percentile(starts, 0.5), since(used, m.processors())
	began, used = time.Now(), m.processors()
	_, err = each(batch, func(i int) (string, error) { return "", endPod(m.t.Context(), c, ids[i]) })
	b.deleted, b.deleting = time.Since(began), since(used, m.processors())
	return b, err
}

func (m *meter) callRuntime(call func(runtimeapi.RuntimeServiceClient) error) {
	m.t.Helper()
	if err := scene.Shared.CRI(call); err != nil {
		m.t.Fatal(err)
	}
}

// each calls f for 0 to count-1, a few at a time.
func each(count int, f func(i int) (string, error)) ([]string, error) {
	results := make([]string, count)
	next := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	for range parallel {
		wg.Go(func() {
			for i := range next {
				got, err := f(i)
				mu.Lock()
				if results[i] = got; err != nil && first == nil {
					first = err
				}
				mu.Unlock()
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	wg.Wait()
	return results, first
}

// runPod makes what a node agent makes of a plain pod, and returns the sandbox.
func runPod(ctx context.Context, c runtimeapi.RuntimeServiceClient, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Uid: name, Namespace: "bench"},
		LogDirectory: filepath.Join(scene.Shared.PodLogsDir(), "bench_"+name+"_"+name),
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: scene.Shared.CgroupRoot() + "/bench"},
	}
	if err := os.MkdirAll(sandbox.LogDirectory, 0o755); err != nil {
		return "", err
	}
	made, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		return "", fmt.Errorf("run sandbox: %w", err)
	}
	container, err := c.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: made.GetPodSandboxId(), SandboxConfig: sandbox,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: rig.PauseImage},
			LogPath:  "main.log",
			Linux:    &runtimeapi.LinuxContainerConfig{},
		},
	})
	if err != nil {
		return made.GetPodSandboxId(), fmt.Errorf("create container: %w", err)
	}
	if _, err := c.StartContainer(ctx,
		&runtimeapi.StartContainerRequest{ContainerId: container.GetContainerId()}); err != nil {
		return made.GetPodSandboxId(), fmt.Errorf("start container: %w", err)
	}
	return made.GetPodSandboxId(), nil
}

func endPod(ctx context.Context, c runtimeapi.RuntimeServiceClient, sandbox string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		return fmt.Errorf("stop sandbox: %w", err)
	}
	if _, err := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	return nil
}
