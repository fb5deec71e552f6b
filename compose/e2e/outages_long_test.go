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
	shared.use(t)
	s := newScene(t)
	w := s.steady()
	s.create(scripted("ends", forever), plain("goes"))
	s.ready(patience, "ends", "goes")
	first := s.mainProcess("ends")
	if err := s.StopContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	s.create(plain("comes"))
	s.remove("goes")
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.wait(patience, "a Node that is not Ready", func(v record.View) error {
		for _, c := range v.Node().Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse {
				return nil
			}
		}
		return errors.New("it is still Ready")
	})
	t.Logf("the Node is not Ready %s after the runtime's end", ms(time.Since(stopped)))
	time.Sleep(time.Until(stopped.Add(outage)))
	if err := s.StartContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	s.ready(patience, "comes")
	s.wait(patience, "the end of a pod that was deleted meanwhile", s.areGone("goes"))
	s.wait(patience, "the restart of what ended meanwhile", s.restarted("ends", 1))
	t.Logf("all that waited for the runtime was done %s after its return", ms(time.Since(back)))
	if err := s.WaitNodeReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.sameContainers(w)
	if age := w.leaseAge(); age > maxLease {
		t.Errorf("the Lease was %s old, more than %s", age, maxLease)
	}
}

// sameContainers judges that the containers of a witness' pods are those from before. Their Ready may have been taken
// from them meanwhile by the node controller.
func (s *scene) sameContainers(w *witness) {
	s.t.Helper()
	s.sync()
	v := s.record.View()
	for _, was := range w.pods {
		now := v.Pod(s.ns, was.Name)
		if now == nil || fmt.Sprint(record.Containers(now)) != fmt.Sprint(record.Containers(was)) {
			s.t.Errorf("%s was touched: containers were %v, it is %s", was.Name, record.Containers(was), describe(now))
		}
	}
}

// mainProcess is the first process of a pod's one container.
func (s *scene) mainProcess(pod string) int {
	s.t.Helper()
	_, id, _ := strings.Cut(containerID(s.record.View().Pod(s.ns, pod)), "://")
	pid, err := s.firstProcess(id)
	if err != nil {
		s.t.Fatal(err)
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
	shared.use(t)
	s := newScene(t)
	w := s.steady()
	var hung []string
	for i := range hangingPods {
		hung = append(hung, fmt.Sprintf("hangs-%d", i))
		s.create(scripted(hung[i], forever))
	}
	s.create(scripted("ends", forever), plain("goes"))
	s.ready(patience, append(hung, "ends", "goes")...)
	var shims []int
	for _, name := range hung {
		shims = append(shims, machine.Parent(s.mainProcess(name)))
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
	s.remove(hung...)
	time.Sleep(2 * time.Second) // their stops hang

	begin := time.Now()
	s.create(plain("comes"))
	s.remove("goes")
	s.endContainer("ends")
	s.ready(besideHung, "comes")
	s.wait(besideHung, "the end of another pod", s.areGone("goes"))
	s.wait(besideHung, "the restart of another pod's container", s.restarted("ends", 1))
	t.Logf("while the calls about %d pods hang others start, end and restart within %s", len(hung),
		ms(time.Since(begin)))
	time.Sleep(20 * time.Second) // the hung pods are past their grace period of 10 s
	s.sync()
	for _, name := range hung {
		if s.record.View().Pod(s.ns, name) == nil {
			t.Errorf("pod %s is gone, and its container runs", name)
		}
	}
	s.create(plain("comes-too"))
	s.ready(besideHung, "comes-too")
	thaw()
	begin = time.Now()
	s.wait(patience, "the end of the pods that hung", s.areGone(hung...))
	t.Logf("the pods that hung are gone %s after their shims answer again", ms(time.Since(begin)))
	s.leavesNoContainer(hung...)
	w.untouched()
	w.nodeReady()
}

// expiry is how long the node's short certificate is good for: long enough for a start on a busy machine.
const expiry = 90 * time.Second

// TestCertificateExpires: the node's client certificate expires under it. Pods run on and their containers are
// restarted; when the files are renewed, all that came up meanwhile is reported.
func TestCertificateExpires(t *testing.T) {
	s := newScene(t)
	c := s.newCredentials()
	c.issue(expiry)
	until := time.Now().Add(expiry)
	shared.switchTo(t, rig.AgentMicrolet, "--kubeconfig="+c.kubeconfig)
	t.Cleanup(func() { shared.switchTo(t, firstAgent) })
	s.create(scripted("ends", forever))
	s.ready(patience, "ends")
	w := s.witness("ends")
	if left := time.Until(until); left < time.Second {
		t.Fatalf("the start took all of the certificate's life and %s more", -left)
	}
	time.Sleep(time.Until(until.Add(time.Second)))

	mark := s.record.Mark()
	s.endContainer("ends")
	await(t, patience, "the restart of a container", func() error { return s.runsAttempt("ends", 1) })
	s.create(onNode(plain("comes"), s.NodeName()))
	time.Sleep(15 * time.Second)
	s.sync()
	for _, e := range s.record.Since(mark) {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Name == "ends" && len(p.Status.ContainerStatuses) > 0 &&
			p.Status.ContainerStatuses[0].RestartCount > 0 {
			t.Fatal("the node was heard, so its certificate is still good and this test shows nothing")
		}
	}
	s.waitHealthy(t, patience)

	c.issue(time.Hour)
	renewed := time.Now()
	s.wait(patience, "the status of the time without a certificate", s.restarted("ends", 1))
	t.Logf("the status of that time was delivered %s after the certificate was renewed", ms(time.Since(renewed)))
	s.ready(patience, "comes")
	await(t, patience, "a fresh Lease", func() error { return s.fresh(renewed) })
	t.Logf("the Lease was renewed %s after the certificate", ms(time.Since(renewed)))
	if now := s.record.View().Pod(s.ns, "ends"); now.UID != w.pods[0].UID ||
		now.Status.ContainerStatuses[0].RestartCount != 1 {
		t.Errorf("the pod was restarted more than once: %s", describe(now))
	}
}

// credentials are a kubeconfig of the node that names its certificate's files.
type credentials struct {
	s          *scene
	ca         *tls.Certificate
	kubeconfig string
	cert, key  string
}

func (s *scene) newCredentials() *credentials {
	s.t.Helper()
	dir := s.t.TempDir()
	c := &credentials{
		s:          s,
		kubeconfig: filepath.Join(dir, "kubeconfig"),
		cert:       filepath.Join(dir, "client.crt"),
		key:        filepath.Join(dir, "client.key"),
	}
	pki := filepath.Join(s.Dir(), "pki")
	ca, err := tls.LoadX509KeyPair(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key"))
	if err != nil {
		s.t.Fatal(err)
	}
	c.ca = &ca
	config, err := clientcmd.LoadFromFile(s.NodeKubeconfig())
	if err != nil {
		s.t.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: c.cert, ClientKey: c.key}
	}
	if err := clientcmd.WriteToFile(*config, c.kubeconfig); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// issue replaces the certificate by one that is good for so long.
func (c *credentials) issue(life time.Duration) {
	t := c.s.t
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
		dir  func(*scene) string
		fill func(dir string) (ballast string, err error)
	}{
		"volumes": {func(s *scene) string { return filepath.Join(s.RootDir(), "pods") }, fillBytes},
		"logs":    {func(s *scene) string { return s.PodLogsDir() }, fillInodes},
	} {
		t.Run(name, func(t *testing.T) {
			shared.use(t)
			s := newScene(t)
			config := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: "big"},
				Data:       map[string]string{"a": strings.Repeat("a", 200<<10)},
			}
			if _, err := s.client.CoreV1().ConfigMaps(s.ns).Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			dir := disk.dir(s)
			s.smallDisk(dir)
			s.create(plain("neighbour"), plain("goes"))
			s.ready(patience, "neighbour", "goes")
			w := s.witness("neighbour")
			ballast, err := disk.fill(dir)
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("the disk does not fill: %v", err)
			}

			p := scripted("waits", forever)
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "big"}},
			}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
			s.create(p)
			s.wait(patience, "word of the full disk", func(v record.View) error {
				var reported []string
				for _, e := range v.Events(s.ns, "waits") {
					if reported = append(reported, e.Reason+": "+e.Message); e.Type == corev1.EventTypeWarning &&
						strings.Contains(e.Message, "no space left on device") {
						t.Logf("reported: %s: %s", e.Reason, e.Message)
						return nil
					}
				}
				return fmt.Errorf("%s, reported %q", describe(v.Pod(s.ns, "waits")), reported)
			})
			begin := time.Now()
			s.remove("goes")
			s.wait(patience, "the end of a pod on a full disk", s.areGone("goes"))
			t.Logf("on the full disk a pod goes within %s", ms(time.Since(begin)))
			s.sync()
			w.untouched()
			if err := os.RemoveAll(ballast); err != nil {
				t.Fatal(err)
			}
			begin = time.Now()
			s.ready(patience, "waits")
			t.Logf("the pod is Ready %s after there is room", ms(time.Since(begin)))
			w.untouched()
			w.nodeReady()
		})
	}
}

// smallDisk puts a small file system over a folder of the agent until the scenario has ended.
func (s *scene) smallDisk(dir string) {
	s.t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=1m,nr_inodes=300,mode=0755"); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		s.clear() // what is mounted in it goes with the pods
		await(s.t, patience, "an end of the small disk", func() error { return unix.Unmount(dir, 0) })
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
