# The image holds the static binary, a bundle of certificate authorities and a default configuration; nothing else.
# `make image` (deploy/image.sh) puts them into the build context and builds it.
FROM scratch
ADD root.tar /
ENV PATH=/usr/local/bin
USER 65532:65532
EXPOSE 5000 5001
# The arguments of registry:3; a configuration of one's own is mounted over that file.
ENTRYPOINT ["larder"]
CMD ["serve", "/etc/distribution/config.yml"]
