package credentialplugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	goruntime "runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	kubeletv1 "k8s.io/kubelet/config/v1"
	"k8s.io/kubelet/pkg/apis/credentialprovider"
	"k8s.io/kubelet/pkg/apis/credentialprovider/install"
	credentialsv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	credentialsv1alpha1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1alpha1"
	credentialsv1beta1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1beta1"
)

const (
	// runTime is how long a plugin may take, which nothing configures.
	runTime = time.Minute
	// endTime is how long its output is waited for after it was killed: what left its process group may hold it open.
	endTime = time.Second
	// maxOutput bounds what a plugin may write, and what of its errors is shown.
	maxOutput, maxErrors = 1 << 20, 4 << 10
)

// codecs read and write the protocol's versions, and refuse unknown fields.
var codecs = sync.OnceValue(func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
})

var apiVersions = map[string]schema.GroupVersion{
	credentialsv1.SchemeGroupVersion.String():       credentialsv1.SchemeGroupVersion,
	credentialsv1beta1.SchemeGroupVersion.String():  credentialsv1beta1.SchemeGroupVersion,
	credentialsv1alpha1.SchemeGroupVersion.String(): credentialsv1alpha1.SchemeGroupVersion,
}

// program is a plugin's.
type program struct {
	name, path, apiVersion string
	args, env              []string
	metrics                *metrics
}

func newProgram(path string, p *kubeletv1.CredentialProvider, m *metrics) *program {
	made := &program{name: p.Name, path: path, apiVersion: p.APIVersion, args: p.Args, metrics: m}
	for _, v := range p.Env {
		made.env = append(made.env, v.Name+"="+v.Value)
	}
	return made
}

// ask runs the plugin once. Its error holds nothing of the plugin's standard output, which has the credentials.
func (p *program) ask(ctx context.Context, request *credentialprovider.CredentialProviderRequest) (
	*credentialprovider.CredentialProviderResponse, error) {
	asked, err := p.encode(request)
	if err != nil {
		return nil, fmt.Errorf("failed to encode auth request: %w", err)
	}
	answer, err := p.run(ctx, asked, request.Image)
	if err != nil {
		return nil, err
	}
	gvk, err := json.DefaultMetaFactory.Interpret(answer)
	if err != nil {
		return nil, errors.New("error reading GVK from response: it is no JSON with apiVersion and kind")
	}
	if got := gvk.GroupVersion().String(); got != p.apiVersion {
		return nil, fmt.Errorf("apiVersion from credential plugin response did not match expected apiVersion:%s, "+
			"actual apiVersion:%s", p.apiVersion, got)
	}
	object, _, err := codecs().UniversalDecoder().Decode(answer, nil, nil)
	response, ok := object.(*credentialprovider.CredentialProviderResponse)
	if err != nil || !ok {
		return nil, errors.New("error decoding credential provider plugin response from stdout")
	}
	return response, nil
}

func (p *program) encode(request *credentialprovider.CredentialProviderRequest) ([]byte, error) {
	info, ok := runtime.SerializerInfoForMediaType(codecs().SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		return nil, fmt.Errorf("unsupported media type %q", runtime.ContentTypeJSON)
	}
	return runtime.Encode(codecs().EncoderForVersion(info.Serializer, apiVersions[p.apiVersion]), request)
}

// run returns what the plugin writes.
func (p *program) run(ctx context.Context, stdin []byte, image string) ([]byte, error) {
	begun := time.Now()
	defer func() { p.metrics.duration.WithLabelValues(p.name).Observe(time.Since(begun).Seconds()) }()
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	stdout, stderr := &limited{max: maxOutput}, &limited{max: maxErrors}
	cmd := exec.CommandContext(ctx, p.path, p.args...) //nolint:gosec // the operator names it, and no shell reads it
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), stdout, stderr
	cmd.Env = append(os.Environ(), p.env...)
	// Nothing of it goes on when the pull or this process has ended.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = endTime
	// The signal comes when the thread ends that started it.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	err := cmd.Run()
	if ctx.Err() != nil {
		err = ctx.Err()
	} else if err == nil && stdout.over {
		err = fmt.Errorf("it wrote more than %d bytes", maxOutput)
	}
	if err != nil {
		p.metrics.errors.WithLabelValues(p.name).Inc()
		return nil, fmt.Errorf("error execing credential provider plugin %s for image %s: %w: %s", p.name, image, err,
			stderr.kept.String())
	}
	return stdout.kept.Bytes(), nil
}

// limited keeps the first bytes of what is written.
type limited struct {
	kept bytes.Buffer
	max  int
	over bool
}

// Write takes all, so that the plugin is not held up.
func (l *limited) Write(data []byte) (int, error) {
	keep := min(len(data), l.max-l.kept.Len())
	l.over = l.over || keep < len(data)
	_, err := l.kept.Write(data[:keep])
	return len(data), err
}
