//go:build long && !bench

package e2e

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/rig"
)

// TestRuntimeDown keeps the runtime away. The Node says so, containers run on, and what was asked for meanwhile is done
// when it is back.
func TestRuntimeDown(t *testing.T) {
	Shared.UseMicrolet(t)
	s := New(t)
	w := s.CreateSteadyPods()
	s.CreatePods(ScriptPod("ends", Forever), PausePod("goes"))
	s.WaitReady(Patience, "ends", "goes")
	first := mainProcess(s, "ends")
	if err := s.StopContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	s.CreatePods(PausePod("comes"))
	s.DeletePods("goes")
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.Wait(Patience, "a Node that is not Ready", func(v record.View) error {
		for _, c := range v.Node().Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse {
				return nil
			}
		}
		return errors.New("it is still Ready")
	})
	t.Logf("the Node is not Ready %s after the runtime's end", Milliseconds(time.Since(stopped)))
	time.Sleep(time.Until(stopped.Add(Outage)))
	if err := s.StartContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	s.WaitReady(Patience, "comes")
	s.Wait(Patience, "the end of a pod that was deleted meanwhile", s.AreGone("goes"))
	s.Wait(Patience, "the restart of what ended meanwhile", s.Restarted("ends", 1))
	t.Logf("all that waited for the runtime was done %s after its return", Milliseconds(time.Since(back)))
	if err := s.WaitNodeReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	sameContainers(s, w)
	if age := w.LeaseAge(); age > MaxLeaseAge {
		t.Errorf("the Lease was %s old, more than %s", age, MaxLeaseAge)
	}
}

// sameContainers judges that the containers of a witness' pods are those from before. Their Ready may have been taken
// from them meanwhile by the node controller.
func sameContainers(s *Scene, w *Witness) {
	s.T.Helper()
	s.SyncRecord()
	v := s.Record.View()
	for _, was := range w.Pods {
		now := v.Pod(s.Namespace, was.Name)
		if now == nil || fmt.Sprint(record.Containers(now)) != fmt.Sprint(record.Containers(was)) {
			s.T.Errorf("%s was touched: containers were %v, it is %s", was.Name, record.Containers(was), Describe(now))
		}
	}
}

// mainProcess is the first process of a pod's one container.
func mainProcess(s *Scene, pod string) int {
	s.T.Helper()
	_, id, _ := strings.Cut(ContainerID(s.Record.View().Pod(s.Namespace, pod)), "://")
	pid, err := s.ContainerPID(id)
	if err != nil {
		s.T.Fatal(err)
	}
	return pid
}

const (
	// hangingPods are more than runtime calls may be under way at one time.
	hangingPods = 6
	// besideHung is less than a hung call is waited for, which takes two minutes.
	besideHung = time.Minute
)

// TestRuntimeCallsHang: the shims of some pods stop answering, so that what is asked of the runtime about these pods
// hangs. Everything else goes on.
func TestRuntimeCallsHang(t *testing.T) {
	Shared.UseMicrolet(t)
	s := New(t)
	w := s.CreateSteadyPods()
	var hung []string
	for i := range hangingPods {
		hung = append(hung, fmt.Sprintf("hangs-%d", i))
		s.CreatePods(ScriptPod(hung[i], Forever))
	}
	s.CreatePods(ScriptPod("ends", Forever), PausePod("goes"))
	s.WaitReady(Patience, append(hung, "ends", "goes")...)
	var shims []int
	for _, name := range hung {
		shims = append(shims, machine.Parent(mainProcess(s, name)))
	}
	thaw := func() {
		for _, pid := range shims {
			_ = unix.Kill(pid, unix.SIGCONT)
		}
	}
	t.Cleanup(thaw)
	for _, pid := range shims {
		if program := machine.Arguments(pid); len(program) == 0 || !strings.Contains(program[0], "shim") {
			t.Fatalf("the parent %d of a container is %q", pid, program)
		}
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	s.DeletePods(hung...)
	time.Sleep(2 * time.Second) // their stops hang

	begin := time.Now()
	s.CreatePods(PausePod("comes"))
	s.DeletePods("goes")
	s.EndContainer("ends")
	s.WaitReady(besideHung, "comes")
	s.Wait(besideHung, "the end of another pod", s.AreGone("goes"))
	s.Wait(besideHung, "the restart of another pod's container", s.Restarted("ends", 1))
	t.Logf("while the calls about %d pods hang others start, end and restart within %s", len(hung),
		Milliseconds(time.Since(begin)))
	time.Sleep(20 * time.Second) // the hung pods are past their grace period of 10 s
	s.SyncRecord()
	for _, name := range hung {
		if s.Record.View().Pod(s.Namespace, name) == nil {
			t.Errorf("pod %s is gone, and its container runs", name)
		}
	}
	s.CreatePods(PausePod("comes-too"))
	s.WaitReady(besideHung, "comes-too")
	thaw()
	begin = time.Now()
	s.Wait(Patience, "the end of the pods that hung", s.AreGone(hung...))
	t.Logf("the pods that hung are gone %s after their shims answer again", Milliseconds(time.Since(begin)))
	s.LeavesNoContainer(hung...)
	w.Untouched()
	w.NodeReady()
}

// expiry is how long the node's short certificate is good for: long enough for a start on a busy machine.
const expiry = 90 * time.Second

// TestCertificateExpires: the node's client certificate expires under it. Pods run on and their containers are
// restarted; when the files are renewed, all that came up meanwhile is reported.
func TestCertificateExpires(t *testing.T) {
	s := New(t)
	c := newCredentials(s)
	c.issue(expiry)
	until := time.Now().Add(expiry)
	Shared.SwitchTo(t, rig.AgentMicrolet, "--kubeconfig="+c.kubeconfig)
	t.Cleanup(func() { Shared.SwitchTo(t, FirstAgent) })
	s.CreatePods(ScriptPod("ends", Forever))
	s.WaitReady(Patience, "ends")
	w := s.Witness("ends")
	if left := time.Until(until); left < time.Second {
		t.Fatalf("the start took all of the certificate's life and %s more", -left)
	}
	time.Sleep(time.Until(until.Add(time.Second)))

	mark := s.Record.Mark()
	s.EndContainer("ends")
	Await(t, Patience, "the restart of a container", func() error { return s.RunsAttempt("ends", 1) })
	s.CreatePods(OnNode(PausePod("comes"), s.NodeName()))
	time.Sleep(15 * time.Second)
	s.SyncRecord()
	for _, e := range s.Record.Since(mark) {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Name == "ends" && len(p.Status.ContainerStatuses) > 0 &&
			p.Status.ContainerStatuses[0].RestartCount > 0 {
			t.Fatal("the node was heard, so its certificate is still good and this test shows nothing")
		}
	}
	s.WaitHealthy(t, Patience)

	c.issue(time.Hour)
	renewed := time.Now()
	s.Wait(Patience, "the status of the time without a certificate", s.Restarted("ends", 1))
	t.Logf("the status of that time was delivered %s after the certificate was renewed", Milliseconds(time.Since(renewed)))
	s.WaitReady(Patience, "comes")
	Await(t, Patience, "a fresh Lease", func() error { return s.LeaseRenewedSince(renewed) })
	t.Logf("the Lease was renewed %s after the certificate", Milliseconds(time.Since(renewed)))
	if now := s.Record.View().Pod(s.Namespace, "ends"); now.UID != w.Pods[0].UID ||
		now.Status.ContainerStatuses[0].RestartCount != 1 {
		t.Errorf("the pod was restarted more than once: %s", Describe(now))
	}
}

// credentials are a kubeconfig of the node that names its certificate's files.
type credentials struct {
	s          *Scene
	ca         *tls.Certificate
	kubeconfig string
	cert, key  string
}

func newCredentials(s *Scene) *credentials {
	s.T.Helper()
	dir := s.T.TempDir()
	c := &credentials{
		s:          s,
		kubeconfig: filepath.Join(dir, "kubeconfig"),
		cert:       filepath.Join(dir, "client.crt"),
		key:        filepath.Join(dir, "client.key"),
	}
	pki := filepath.Join(s.Dir(), "pki")
	ca, err := tls.LoadX509KeyPair(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key"))
	if err != nil {
		s.T.Fatal(err)
	}
	c.ca = &ca
	config, err := clientcmd.LoadFromFile(s.NodeKubeconfig())
	if err != nil {
		s.T.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: c.cert, ClientKey: c.key}
	}
	if err := clientcmd.WriteToFile(*config, c.kubeconfig); err != nil {
		s.T.Fatal(err)
	}
	return c
}

// issue replaces the certificate by one that is good for so long.
func (c *credentials) issue(life time.Duration) {
	t := c.s.T
	t.Helper()
	// One key is enough: what counts is the certificate's time, and with it the pair fits at any moment.
	key := c.ca.PrivateKey
	if _, err := os.Stat(c.key); errors.Is(err, os.ErrNotExist) {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(c.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	issuer, err := x509.ParseCertificate(c.ca.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "system:node:" + c.s.NodeName(), Organization: []string{"system:nodes"}},
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(life),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, issuer, issuer.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	hidden := c.cert + ".new"
	if err := os.WriteFile(hidden, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(hidden, c.cert); err != nil {
		t.Fatal(err)
	}
}

// TestDiskFull: the disk of the pods' folders, or of their logs, is full. A new pod says so and runs when there is
// room; one that is deleted goes, as that is what makes room; others are not touched.
func TestDiskFull(t *testing.T) {
	for name, disk := range map[string]struct {
		dir  func(*Scene) string
		fill func(dir string) (ballast string, err error)
	}{
		"volumes": {func(s *Scene) string { return filepath.Join(s.RootDir(), "pods") }, fillBytes},
		"logs":    {func(s *Scene) string { return s.PodLogsDir() }, fillInodes},
	} {
		t.Run(name, func(t *testing.T) {
			Shared.UseMicrolet(t)
			s := New(t)
			config := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: "big"},
				Data:       map[string]string{"a": strings.Repeat("a", 200<<10)},
			}
			if _, err := s.API.CoreV1().ConfigMaps(s.Namespace).Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			dir := disk.dir(s)
			smallDisk(s, dir)
			s.CreatePods(PausePod("neighbour"), PausePod("goes"))
			s.WaitReady(Patience, "neighbour", "goes")
			w := s.Witness("neighbour")
			ballast, err := disk.fill(dir)
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("the disk does not fill: %v", err)
			}

			p := ScriptPod("waits", Forever)
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "big"}},
			}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
			s.CreatePods(p)
			s.Wait(Patience, "word of the full disk", func(v record.View) error {
				var reported []string
				for _, e := range v.Events(s.Namespace, "waits") {
					if reported = append(reported, e.Reason+": "+e.Message); e.Type == corev1.EventTypeWarning &&
						strings.Contains(e.Message, "no space left on device") {
						t.Logf("reported: %s: %s", e.Reason, e.Message)
						return nil
					}
				}
				return fmt.Errorf("%s, reported %q", Describe(v.Pod(s.Namespace, "waits")), reported)
			})
			begin := time.Now()
			s.DeletePods("goes")
			s.Wait(Patience, "the end of a pod on a full disk", s.AreGone("goes"))
			t.Logf("on the full disk a pod goes within %s", Milliseconds(time.Since(begin)))
			s.SyncRecord()
			w.Untouched()
			if err := os.RemoveAll(ballast); err != nil {
				t.Fatal(err)
			}
			begin = time.Now()
			s.WaitReady(Patience, "waits")
			t.Logf("the pod is Ready %s after there is room", Milliseconds(time.Since(begin)))
			w.Untouched()
			w.NodeReady()
		})
	}
}

// smallDisk puts a small file system over a folder of the agent until the scenario has ended.
func smallDisk(s *Scene, dir string) {
	s.T.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.T.Fatal(err)
	}
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=1m,nr_inodes=300,mode=0755"); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() {
		s.DeleteAllPods() // what is mounted in it goes with the pods
		Await(s.T, Patience, "an end of the small disk", func() error { return unix.Unmount(dir, 0) })
	})
}

// fillBytes leaves no byte on a disk.
func fillBytes(dir string) (ballast string, err error) {
	ballast = filepath.Join(dir, ".ballast")
	f, err := os.Create(ballast)
	if err != nil {
		return ballast, err
	}
	defer f.Close()
	_, err = io.Copy(f, zeroes{})
	return ballast, err
}

// fillInodes leaves no file on a disk, which empty files and folders need too.
func fillInodes(dir string) (ballast string, err error) {
	ballast = filepath.Join(dir, ".ballast")
	err = os.Mkdir(ballast, 0o700)
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(ballast, fmt.Sprint(i)), nil, 0o600)
	}
	return ballast, err
}

// zeroes has no end.
type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
