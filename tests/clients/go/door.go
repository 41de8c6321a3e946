// The step of the walk at a guarded door: TLS, a token, a client's certificate.

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	pb "procyard/walk/generated/procyard/v1"
)

// A token that goes with every call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

func (w *walk) theDoorKnowsWhoCalls() {
	owner := func(connection *grpc.ClientConn, name string) string {
		request := &pb.StartRequest{Id: w.id(name), Spec: shell("exit 0"), Wait: exit}
		return must(pb.NewProcessServiceClient(connection).Start(ctx, request)).Process.Spec.Owner
	}
	token := knock("", grpc.WithPerRPCCredentials(bearer(doorFile("token"))))
	defer token.Close()
	expect(owner(token, "door") == "token-walker", "by token")

	certificate := knock("client")
	defer certificate.Close()
	expect(owner(certificate, "hall") == "walker", "by certificate")
	_, err := pb.NewProcessServiceClient(certificate).Get(ctx, &pb.GetRequest{Id: w.id("door")})
	refused(err, codes.NotFound, "PROCESS_NOT_FOUND")

	nobody := knock("")
	defer nobody.Close()
	_, err = pb.NewProcessServiceClient(nobody).List(ctx, &pb.ListRequest{})
	refused(err, codes.Unauthenticated, "NO_CREDENTIALS")

	wrong := knock("", grpc.WithPerRPCCredentials(bearer("wrong")))
	defer wrong.Close()
	_, err = pb.NewProcessServiceClient(wrong).List(ctx, &pb.ListRequest{})
	refused(err, codes.Unauthenticated, "BAD_CREDENTIALS")

	stranger := knock("stranger")
	defer stranger.Close()
	_, err = pb.NewProcessServiceClient(stranger).List(ctx, &pb.ListRequest{})
	expect(status.Code(err) == codes.Unavailable, err)
}

// Connects to the guarded door, with a certificate if one is named.
func knock(certificate string, options ...grpc.DialOption) *grpc.ClientConn {
	authorities := x509.NewCertPool()
	expect(authorities.AppendCertsFromPEM([]byte(doorFile("ca.pem"))), "ca.pem")
	config := &tls.Config{RootCAs: authorities}
	if certificate != "" {
		pair := must(tls.LoadX509KeyPair(doorPath(certificate+".pem"), doorPath(certificate+".key")))
		// Also one that the server says it would not know.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	return must(grpc.NewClient(doorFile("address"), options...))
}

func refused(err error, code codes.Code, reason string) {
	expect(status.Code(err) == code && detail[*errdetails.ErrorInfo](err).Reason == reason, err)
}

func doorPath(name string) string { return filepath.Join(os.Getenv("PROCYARD_DOOR"), name) }

func doorFile(name string) string {
	return strings.TrimSpace(string(must(os.ReadFile(doorPath(name)))))
}
