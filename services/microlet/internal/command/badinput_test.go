package command

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/up"
)

// badInput is a command line that is refused. What comes from $dir are the files that badFiles makes.
type badInput struct {
	line string
	// names are the words of the answer: the input, as it was given, and the fault.
	names []string
}

var badInputs = []badInput{
	// Names of commands.
	{"statu", []string{`"statu"`, "is no command", "microlet status"}},
	{"kubelet", []string{`"kubelet"`, "is no command"}},
	{"help statsu", []string{`"statsu"`, "is no command"}},
	{"completion tcsh", []string{`"tcsh"`, "bash, fish, powershell, zsh"}},
	{"stauts", []string{`"stauts"`, "microlet status?"}},
	{"stat", []string{`"stat"`, "microlet status?"}},
	{"plge", []string{`"plge"`, "is no command", "microlet --help"}},
	{"nodestat", []string{`"nodestat"`, "microlet --help"}},
	{"ps", []string{`"ps"`, "microlet pods?"}},
	{"get pods", []string{`"get"`, "microlet pods?"}},
	{"ls", []string{`"ls"`, "microlet pods?"}},
	{"describe pod web", []string{`"describe"`, "microlet explain POD?"}},
	{"events", []string{`"events"`, "microlet explain POD?"}},
	{"doctor", []string{`"doctor"`, "microlet check?"}},
	{"validate", []string{`"validate"`, "microlet check?"}},
	{"preflight", []string{`"preflight"`, "microlet check?"}},
	{"config", []string{`"config"`, "microlet check --print-config?"}},
	{"configz", []string{`"configz"`, "microlet check --print-config?"}},
	{"sysdump", []string{`"sysdump"`, "microlet debug bundle?"}},
	{"support", []string{`"support"`, "microlet debug bundle?"}},
	{"bundle", []string{`"bundle"`, "microlet debug bundle?"}},
	{"certs", []string{`"certs"`, "microlet status?"}},
	{"node", []string{`"node"`, "microlet status?"}},
	{"services", []string{`"services"`, "microlet status?"}},
	{"dashboard", []string{`"dashboard"`, "microlet top?"}},
	{"log podsync", []string{`"log"`, "microlet logs?"}},
	{"journal", []string{`"journal"`, "microlet logs?"}},
	{"start", []string{`"start"`, "microlet up?"}},
	{"kill pleg", []string{`"kill"`, "microlet restart SERVICE?"}},
	{"apply -f web.yaml", []string{"-f", "unknown"}},
	{"run web.yaml", []string{`"run"`, "microlet run-pod FILE?"}},
	{"delete web", []string{`"delete"`, "microlet rm-pod NAME?"}},
	{"images", []string{`"images"`, "crictl images?"}},
	{"exec web", []string{`"exec"`, "kubectl exec?"}},
	{"help ps", []string{`"ps"`, "is no command"}},
	{"debug sysdump", []string{`"sysdump"`, "microlet debug --help"}},
	{"version -o", []string{"-o", "value is missing"}},
	{"check extra", []string{`"extra"`, "takes nothing else"}},
	{"check --like=k3s --config=$dir/fine", []string{`"k3s"`, `"kubelet"`}},
	{"prepare extra", []string{`"extra"`, "takes nothing else"}},
	{"status --wait --timeout=soon", []string{"--timeout=soon", "duration"}},
	{"status -w --exit-code", []string{"--watch", "--exit-code"}},
	{"restart alll", []string{`"alll"`, "no service"}},
	{"restart pleg bus", []string{`"bus"`, "one too many"}},
	{"logs podsync --tail=many", []string{"--tail=many", "whole number"}},
	{"pods --namespace", []string{"--namespace", "value is missing"}},
	{"pods -w -o xml", []string{`"xml"`, "json"}},
	{"explain - --output", []string{"--output", "value is missing"}},
	{"rm-pod web --timeout=0s", []string{"timeout is 0s", "positive"}},
	{"run-pod - --timeout=never", []string{"--timeout=never", "duration"}},
	{"health bus pleg", []string{`"pleg"`, "one too many"}},
	{"top --interval=1s", []string{"--interval", "unknown"}},
	{"debug ps", []string{`"ps"`, "microlet debug --help"}},
	{"--config=$dir/none up", []string{"--config=$dir/none", "does not exist"}},
	{"-q", []string{"-q", "unknown"}},
	{"version now", []string{`"now"`, "takes nothing else"}},
	{"version -o xml", []string{`"xml"`, `"json"`, `"yaml"`}},
	{"version --short -o json", []string{"--short", "--output=json"}},
	{"version --shrt", []string{"--shrt", "unknown"}},
	// Flags of up.
	{"up extra", []string{`"extra"`, "takes nothing else"}},
	{"up -", []string{`"-"`, "takes nothing else"}},
	{"up --nod-ip=10.0.0.1", []string{"--nod-ip", "unknown", "--node-ip"}},
	{"up --=3", []string{"--=3", "no name"}},
	{"up -x", []string{"-x", "unknown"}},
	{"up --network-plugin=cni", []string{"--network-plugin", "no such flag any more", "runtime"}},
	{"up --container-runtime=remote", []string{"--container-runtime:", "no such flag any more"}},
	{"up --cni-bin-dir=/opt/cni/bin", []string{"--cni-bin-dir", "no such flag any more"}},
	{"up --logtostderr=true", []string{"--logtostderr", "no such flag any more", "standard error"}},
	{"up --docker-endpoint=unix:///x", []string{"--docker-endpoint", "dockershim"}},
	{"up --config", []string{"--config", "value is missing"}},
	{"up --oom-score-adj=abc", []string{"--oom-score-adj=abc", "does not fit", "whole number"}},
	{"up --max-pods=99999999999", []string{"--max-pods=99999999999", "does not fit"}},
	{"up --fail-swap-on=maybe", []string{"--fail-swap-on=maybe", "true or false"}},
	{"up --sync-frequency=5", []string{"--sync-frequency=5", "duration"}},
	{"up --address=here", []string{"--address=here", "not an IP address"}},
	{"up --node-ip=here", []string{"here", "node-ip"}},
	{"up --node-labels=a!b=c", []string{"a!b"}},
	{"up --node-labels=kubernetes.io/x=y", []string{"kubernetes.io/x"}},
	{"up --register-with-taints=a=b:Ever", []string{"a=b:Ever", "NoSchedule"}},
	{"up --feature-gates=A=maybe", []string{"--feature-gates=A=maybe", "does not fit"}},
	{"up --feature-gates=Nonsense=true", []string{"Nonsense", "no feature gate"}},
	{"up --cluster-dns=x", []string{"clusterDNS[0]=x", "no IP address"}},
	{"up --eviction-hard=memory.available<many", []string{"many", "memory.available"}},
	{"up --system-reserved=cpu=lots", []string{"lots", "cpu"}},
	{"up --tls-min-version=TLS1", []string{"TLS1", "tlsMinVersion"}},
	{"up --cgroup-driver=none", []string{"cgroupDriver=none"}},
	{"up --container-runtime-endpoint=tcp://x", []string{"tcp://x", "containerRuntimeEndpoint"}},
	{"up --port=70000", []string{"70000", "port"}},
	{"up --v=loud", []string{"--v=loud", "whole number"}},
	{"up --logging-format=xml", []string{"xml", "format"}},
	{"up --runtime-dir=relative", []string{`runtime-dir is "relative"`, "absolute path"}},
	{"up --root-dir=", []string{"root-dir"}},
	{"up --watchdog=soon", []string{"--watchdog=soon", "duration"}},
	{"up --watchdog=1s", []string{"watchdog is 1s"}},
	{"up --placement=both", []string{`placement is "both"`, "processes"}},
	{"up --prober-replicas=0", []string{"prober-replicas is 0"}},
	{"up --prober-replicas=2 --placement=single", []string{"prober-replicas is 2", "single"}},
	{"up --placement=bus+", []string{`placement is "bus+"`, "is empty"}},
	{"up --placement=bus+pleg,pleg", []string{"names pleg twice"}},
	{"up --placement=podsync+nodeapi", []string{`placement is "podsync+nodeapi"`, "--placement-force"}},
	{"up --placement=compact --external=prober", []string{`external has "prober"`, "--placement=compact"}},
	{"up --external=unknown", []string{`"unknown"`, "prober"}},
	{"up --peer-cgroups=x", []string{`peer-cgroups has "x"`}},
	{`up --peer-cgroups="`, []string{"--peer-cgroups", "quotes"}},
	{"up --runtime-calls=0", []string{"runtime-calls=0"}},
	{"up --probe-execs=-1", []string{"probe-execs is -1"}},
	{"up --probe-plugin-dir=relative", []string{`probe-plugin-dir is "relative"`, "absolute path"}},
	{"up --bus-view-address=0.0.0.0:4222", []string{"0.0.0.0:4222", "loopback"}},
	{"up --memory-limit=much", []string{"much", "memory-limit"}},
	{"up --list-timeout=-1s", []string{"list-timeout is -1s"}},
	// Files.
	{"up --config=$dir/none", []string{"--config=$dir/none", "does not exist"}},
	{"up --config=$dir", []string{"--config=$dir", "is a folder"}},
	{"up --config=$dir/binary", []string{"$dir/binary", "document"}},
	{"up --config=$dir/empty", []string{"$dir/empty", "document"}},
	{"up --config=$dir/two", []string{"$dir/two", "2 documents"}},
	{"up --config=$dir/pod.yaml", []string{"$dir/pod.yaml", "kind"}},
	{"up --config=$dir/unknownkey", []string{"$dir/unknownkey", "maxPodz", "maxPods"}},
	{"up --config=$dir/wrongtype", []string{"$dir/wrongtype", "maxPods", "whole number"}},
	{"up --config=$dir/twice", []string{"$dir/twice", "twice"}},
	{"up --config-dir=$dir/none", []string{"--config-dir=$dir/none", "does not exist"}},
	{"up --config-dir=$dir/dropins", []string{"$dir/dropins/90.conf", "maxPods"}},
	{"up --kubeconfig=$dir/binary", []string{"--kubeconfig=$dir/binary"}},
	{"up --kubeconfig=$dir/empty", []string{"--kubeconfig=$dir/empty"}},
	{"up --kubeconfig=$dir/pod.yaml", []string{"--kubeconfig=$dir/pod.yaml"}},
	{"up --tls-cert-file=$dir/empty", []string{"$dir/empty", "tlsPrivateKeyFile"}},
	{"up --tls-cert-file=$dir/none --tls-private-key-file=$dir/empty", []string{"$dir/none", "does not exist"}},
	{"up --client-ca-file=$dir/none", []string{"$dir/none", "clientCAFile"}},
	{"up --housekeeping-interval=abc", []string{"--housekeeping-interval=abc", "duration"}},
	{"check --output=xml", []string{`"xml"`, `"text"`, `"yaml"`}},
	{"check --like=kubeadm", []string{`"kubeadm"`, `"kubelet"`}},
	{"check --print-config --output=toml", []string{`"toml"`, `"yaml"`}},
	{"check --confg=x --print-config --config=$dir/fine", []string{"--confg", "--config"}},
	{"up --tls-private-key-file=$dir/empty", []string{"$dir/empty", "tlsCertFile"}},
	{"up --image-credential-provider-config=$dir/none", []string{"$dir/none", "--image-credential-provider-bin-dir"}},
	{"up --node-name=UPPER_x", []string{"--node-name=UPPER_x", "DNS name"}},
	{"up --node-name=a --hostname-override=b", []string{"--node-name=a", "--hostname-override", "names the node b"}},
	{"up --config=$dir/otherkind", []string{"$dir/otherkind", "kind=KubeletConfig", "write KubeletConfiguration"}},
	{"up --config=$dir/otherversion", []string{"$dir/otherversion", "kubelet.config.k8s.io/v1beta1"}},
	{"up --config=$dir/nosignal", []string{"imagefs.avail=5%", "imagefs.available"}},
	{"up --config=$dir/nounit", []string{"syncFrequency=10", "duration"}},
	{"prepare --external=prober", []string{"external"}},
	// Services by themselves.
	{"bus --replica=..", []string{`".."`, "replica"}},
	{"bus --logging-format=xml", []string{"xml", "text"}},
	{"bus --v=-1", []string{"v is -1"}},
	{"prober --resolved-config=$dir/none", []string{"--resolved-config=$dir/none", "does not exist"}},
	{"prober --resolved-config=$dir/pod.yaml", []string{"$dir/pod.yaml"}},
	{"pleg more", []string{`"more"`, "takes nothing else"}},
	// Commands of the operator.
	{"status more", []string{`"more"`, "no service"}},
	{"status podsync more", []string{`"more"`, "no service"}},
	{"status podsync --runtime-dir=$dir", []string{"$dir", "not running"}},
	{"status --wait --watch", []string{"--watch", "--wait"}},
	{"status --wait --timeout=0s", []string{"timeout is 0s", "positive"}},
	{"status --wait --timeout=1ms --runtime-dir=$dir", []string{"$dir", "not running"}},
	{"status -o", []string{"-o", "value is missing"}},
	{"status -o xml", []string{`"xml"`, "wide"}},
	{"status --watch --exit-code", []string{"--watch", "--exit-code"}},
	{"status --runtime-dir=$dir", []string{"$dir", "not running", "--runtime-dir"}},
	{"health", []string{"a service", "SERVICE"}},
	{"health kubelet", []string{`"kubelet"`, "no service"}},
	{"health bus --runtime-dir=$dir", []string{"bus", "not running"}},
	{"logs kubelet", []string{`"kubelet"`, "no service"}},
	{"logs bus pleg", []string{`"pleg"`, "one too many"}},
	{"logs --tail=-5", []string{"tail is -5"}},
	{"logs --since=-5m", []string{"since is -5m", "10m"}},
	{"logs --since=yesterday", []string{"--since=yesterday", "duration"}},
	{"logs --runtime-dir=$dir", []string{"$dir", "not running"}},
	{"restart", []string{"a service"}},
	{"restart plge", []string{`"plge"`, "no service"}},
	{"restart pleg --timeout=0s", []string{"timeout is 0s", "positive"}},
	{"restart pleg --runtime-dir=$dir", []string{"$dir", "not running"}},
	{"pods -o wide", []string{`"wide"`, "json"}},
	{"pods -A -n shop", []string{"--all-namespaces", "--namespace=shop"}},
	{"pods web", []string{`"web"`, "takes nothing else"}},
	{"pods --runtime-dir=$dir", []string{"$dir", "not running"}},
	{"top", []string{"top", "terminal", "--watch"}},
	{"top more", []string{`"more"`, "takes nothing else"}},
	{"debug bundel", []string{`"bundel"`, "microlet debug bundle"}},
	{"debug bundle more", []string{`"more"`, "takes nothing else"}},
	{"debug bundle -o $dir/empty --runtime-dir=$dir", []string{"$dir/empty", "it exists"}},
	{"debug bundle -o $dir/none/x --runtime-dir=$dir", []string{"$dir/none/x", "does not exist"}},
	{"debug bundle --runtime-dir=$dir/none", []string{"$dir/none", "does not exist"}},
	{"run-pod", []string{"manifest"}},
	{"run-pod $dir/none", []string{"$dir/none", "does not exist"}},
	{"run-pod $dir", []string{"$dir", "is a folder"}},
	{"run-pod $dir/empty", []string{"$dir/empty", "empty"}},
	{"run-pod $dir/pod.yaml --timeout=soon", []string{"--timeout=soon", "duration"}},
	{"run-pod $dir/pod.yaml --timeout=-1s", []string{"timeout is -1s"}},
	{"run-pod $dir/pod.yaml --runtime-dir=$dir", []string{"$dir", "not running"}},
	{"run-pod $dir/pod.yaml b", []string{`"b"`, "one too many"}},
	{"run-pod $dir/gpu.yaml --runtime-dir=$dir", []string{"$dir/gpu.yaml", "limits[kubernetes.io/gpu]", "another node"}},
	{"run-pod $dir/two --runtime-dir=$dir", []string{"$dir/two", "kind"}},
	{"rm-pod", []string{"name or UID"}},
	{"rm-pod a b", []string{`"b"`, "one too many"}},
	{"explain", []string{"name the pod"}},
	{"explain $dir/none.yaml", []string{"$dir/none.yaml", "does not exist"}},
	{"explain web --runtime-dir=$dir", []string{"$dir", "not running"}},
	{"explain $dir/binary --runtime-dir=$dir", []string{"$dir/binary"}},
	{"explain $dir", []string{"$dir", "is a folder"}},
	{"explain ./web", []string{"./web", "does not exist"}},
	{"explain web shop", []string{`"shop"`, "one too many"}},
	{"explain $dir/pod.yaml web", []string{`"web"`, "is no file"}},
	{"explain $dir/pod.yaml $dir/none.yaml", []string{"$dir/none.yaml", "does not exist"}},
	{"explain $dir/pod.yaml $dir/empty", []string{"$dir/empty", "empty"}},
	{"explain $dir/service.yaml", []string{"$dir/service.yaml", "Service web"}},
	{"explain pod/web --runtime-dir=$dir", []string{"$dir", "not running"}},
	{"explain pod web --runtime-dir=$dir", []string{"$dir", "not running"}},
	{"explain deployment web", []string{`"web"`, "one too many"}},
	{"explain $dir/refused.yaml --runtime-dir=$dir", []string{"Pod web", "Deployment shop"}},
	{"explain web -o tree", []string{`"tree"`, "json"}},
}

// libraryWords are what libraries say to programmers.
var libraryWords = regexp.MustCompile(`strconv|invalid argument|[Uu]nmarshal|goroutine|panic|unknown command|accepts \d|` +
	`%!|<nil>|no such file or directory|is a directory|Go struct|parse error|cannot find|rpc error|runtime error`)

// remedies are the words by which an answer says what would be right.
var remedies = regexp.MustCompile(`\b(write|give|use|name|remove|did you mean|see|check|start|set|correct|leave|choose|` +
	`run|add|put|restart|must be at least)\b`)

func badFiles(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	for name, text := range map[string]string{
		"binary": "\x00\x01\x02", "empty": "", "two": header + "---\n" + header, "unknownkey": header + "maxPodz: 3\n",
		"wrongtype": header + "maxPods: many\n", "twice": header + "maxPods: 3\nmaxPods: 4\n",
		"pod.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n",
		"refused.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {}\n---\n" +
			"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: shop}\nspec: {template: {spec: {}}}\n",
		"dropins/90.conf": header + "maxPods: many\n", "nounit": header + "syncFrequency: 10\n",
		"fine":         header + "failCgroupV1: false\nfailSwapOn: false\n",
		"nosignal":     header + "evictionHard: {imagefs.avail: 5%}\n",
		"otherkind":    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfig\n",
		"otherversion": "apiVersion: v1\nkind: KubeletConfiguration\n",
		"service.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n",
		"gpu.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i, " +
			"resources: {limits: {kubernetes.io/gpu: 1}}}]}\n",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Each bad input has an answer that names the input, what is wrong with it and what would be right, in words that are
// not a library's.
func TestBadInputs(t *testing.T) {
	dir, good := badFiles(t), kubeletConfig(t, "")
	for _, bad := range badInputs {
		args := strings.Fields(strings.ReplaceAll(bad.line, "$dir", dir))
		if agent := args[0] == "up" || args[0] == "prepare"; agent && !strings.Contains(bad.line, "--config") {
			args = append(args, "--config="+good)
		}
		if c, _, err := New().Find(args); err == nil && c.GroupID == "service" {
			args = append(args, "--runtime-dir="+dir)
		}
		out, err := executeAll(t, args)
		if err == nil {
			t.Errorf("%s: accepted\n%s", bad.line, out)
			continue
		}
		answer := err.Error()
		for _, name := range bad.names {
			if name = strings.ReplaceAll(name, "$dir", dir); !strings.Contains(answer, name) {
				t.Errorf("%s: lacks %s\n%s", bad.line, name, answer)
			}
		}
		if word := libraryWords.FindString(answer + out); word != "" {
			t.Errorf("%s: has %q, which is a library's\n%s%s", bad.line, word, out, answer)
		}
		if !remedies.MatchString(answer) {
			t.Errorf("%s: says no remedy\n%s", bad.line, answer)
		}
		if n := strings.Count(answer, "\n") + 1; n > 2 {
			t.Errorf("%s: has %d lines for one fault\n%s", bad.line, n, answer)
		}
	}
	if len(badInputs) < 200 {
		t.Errorf("%d bad inputs", len(badInputs))
	}
}

// executeAll runs a command line as main does, but for the agent, which is not started, and for services, which are
// stopped: a bad input that is accepted must not do anything to this machine.
func executeAll(t *testing.T, args []string) (string, error) {
	t.Helper()
	cmd := New()
	for _, c := range cmd.Commands() {
		if c.Name() == "up" {
			cmd.RemoveCommand(c)
		}
	}
	cmd.AddCommand(newAgent(&cobra.Command{Use: "up [flags]"}, func(context.Context, up.Config) error { return nil }))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var out synced
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(service.WithArguments(ctx, args))
	return out.String(), err
}
